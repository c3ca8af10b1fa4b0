# TensorRT for RTX, which the tensorrt backend opens as well: its runtime, headers and shim.
tensorrt_rtx_version=1.7.1
tensorrt_rtx_size="89 MB to load, 221 MB to keep"
tensorrt_rtx_licence="NVIDIA's; headers: Apache-2.0"

fetch_tensorrt_rtx() {
  fetch_tensorrt_files "$1" "TensorRT for RTX $tensorrt_rtx_version" tensorrt-rtx-cu12-libs==1.7.1.116 \
    68c2615fef1556e7721235682f460f3d78ab89df320a3f34a416367b144817a8 89 \
    "Or install TensorRT for RTX yourself, build the shim with scripts/build-tensorrt-shim <folder of its headers> and name its \
libtensorrt_rtx.so in CONCH_TENSORRT_LIBRARY." TRT-RTX-1.7 ebd651c6b08e8926de39054ed687259fab96f4f26cea1603af48cb070f31c78d <<FILES
- tensorrt_rtx_cu12_libs-1.7.1.116.dist-info/licenses/LICENSE.txt LICENSE-tensorrt_rtx.txt
fa73b07d275bd89caee07110122c44702d7ab54a8c915c005e7732a66a6b776e tensorrt_rtx_libs/libtensorrt_rtx.so.1
FILES
}
