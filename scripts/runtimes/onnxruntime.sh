# ONNX Runtime for the onnxruntime backend: one library out of its wheel.
onnxruntime_version=1.31.1
onnxruntime_size="24 MB to load, 30 MB to keep"
onnxruntime_licence="MIT, with notices of third parties"

fetch_onnxruntime() {
  local directory=$1 version=$onnxruntime_version wheel
  local library=libonnxruntime.so.$version
  local sum=fc44112fbe06d7d689c57e11d3862031f64711007e4ee020f8eed5185fd2c1d3
  local wheel_sum=5752bd508126ae7c49894d3b9d2e83f0c3d487319246d04c444b393308d7ad7f
  only_on_x86_64 "ONNX Runtime" "Get libonnxruntime.so 1.17 or later for this machine yourself and name it in CONCH_ONNXRUNTIME_LIBRARY."
  if has_sum "$sum" "$directory/$library"; then
    step "ONNX Runtime $version is there"
  else
    step "fetching ONNX Runtime $version (24 MB)"
    wheel=$(fetch_wheel "onnxruntime==$version" "$wheel_sum" \
      "Or get libonnxruntime.so from elsewhere and name it in CONCH_ONNXRUNTIME_LIBRARY." 24)
    unpack "$wheel" onnxruntime/LICENSE "" "$directory/LICENSE"
    unpack "$wheel" onnxruntime/ThirdPartyNotices.txt "" "$directory/ThirdPartyNotices.txt"
    unpack "$wheel" "onnxruntime/capi/$library" "$sum" "$directory/$library"
    rm -f "$wheel"
    step "ONNX Runtime $version is in $directory"
  fi
  echo "$directory/$library"
}
