# TensorRT for RTX, which the tensorrt backend opens as well: its runtime, headers and shim.
tensorrt_rtx_version=1.7.1
tensorrt_rtx_size="89 MB to load, 221 MB to keep"
tensorrt_rtx_licence="NVIDIA's; headers: Apache-2.0"

fetch_tensorrt_rtx() {
  local directory=$1 otherwise="Or install TensorRT for RTX yourself, build the shim with scripts/build-tensorrt-shim <folder of its headers> \
and name its libtensorrt_rtx.so in CONCH_TENSORRT_LIBRARY." wheel
  only_on_x86_64 "TensorRT for RTX" "$otherwise"
  if has_sum fa73b07d275bd89caee07110122c44702d7ab54a8c915c005e7732a66a6b776e "$directory/libtensorrt_rtx.so.1"; then
    step "TensorRT for RTX $tensorrt_rtx_version is there"
  else
    step "fetching TensorRT for RTX $tensorrt_rtx_version (89 MB)"
    wheel=$(fetch_wheel tensorrt-rtx-cu12-libs==1.7.1.116 68c2615fef1556e7721235682f460f3d78ab89df320a3f34a416367b144817a8 "$otherwise" 89)
    unpack "$wheel" tensorrt_rtx_cu12_libs-1.7.1.116.dist-info/licenses/LICENSE.txt "" "$directory/LICENSE-tensorrt_rtx.txt"
    unpack "$wheel" tensorrt_rtx_libs/libtensorrt_rtx.so.1 fa73b07d275bd89caee07110122c44702d7ab54a8c915c005e7732a66a6b776e \
      "$directory/libtensorrt_rtx.so.1"
    rm -f "$wheel"
  fi
  fetch_tensorrt_headers "$directory/include" TRT-RTX-1.7 \
    ebd651c6b08e8926de39054ed687259fab96f4f26cea1603af48cb070f31c78d "$otherwise"
  build_tensorrt_shim "$directory"
  echo "$directory/libtensorrt_rtx.so.1"
}
