# TensorRT for the tensorrt backend: of the packages that can be had from an index, the lean runtime, which runs version-compatible plans;
# and the headers of TensorRT for scripts/build-tensorrt-shim, which is called where there is a compiler.
tensorrt_version=11.4.0
tensorrt_size="46 MB to load, 115 MB to keep"
tensorrt_licence="the lean runtime: NVIDIA's; headers: Apache-2.0"

fetch_tensorrt() {
  fetch_tensorrt_files "$1" "TensorRT's lean runtime $tensorrt_version" tensorrt-lean-cu12-libs==11.4.0.106 \
    091458056315f2ff7d8aa1b324ce8f9a0b227016fe223dfb60fc783eb8659478 46 \
    "Or install TensorRT 8.5 or later yourself, build the shim with scripts/build-tensorrt-shim <folder of its headers> and name its \
libnvinfer.so in CONCH_TENSORRT_LIBRARY." TRT-Enterprise-11.4 23ce5d1d5735dbb86b357ce7dca44f4f4a7e908faaee9871149664843ade8a50 <<FILES
- tensorrt_lean_cu12_libs-11.4.0.106.dist-info/licenses/LICENSE.txt LICENSE-tensorrt.txt
faec4c803783e63451aef212adb2ce0ab186921c19290beb17e2cbe6ced2086d tensorrt_lean_libs/libnvinfer_lean.so.11
d7c334f4d9cf36b2eb82315c487ddf3f315dd609334709c415cb57bc4ca8bc5b tensorrt_lean_libs/libnvinfer_vc_plugin.so.11
FILES
}

# A library, the headers of its version, and the shim where there is a compiler: as fetch_files, then FOLDER and SUM of fetch_tensorrt_headers.
fetch_tensorrt_files() {
  local library
  # A command substitution goes on after a step that fails, unless it is told otherwise.
  library=$(set -e; fetch_files "${@:1:6}")
  fetch_tensorrt_headers "$1/include" "$7" "$8" "$6"
  scripts/build-tensorrt-shim "$1/include" "$1" >/dev/null || step "without the shim no plan is served"
  echo "$library"
}

# The headers of a version, as the crate trtx-sys has them: DIRECTORY FOLDER SUM-OF-NvInferRuntime.h OTHERWISE. Cargo loads the crate.
fetch_tensorrt_headers() {
  local directory=$1 folder=$2 sum=$3 otherwise=$4 scratch=$cache/tensorrt-headers manifest
  if has_sum "$sum" "$directory/NvInferRuntime.h"; then return; fi
  mkdir -p "$scratch/src"
  : >"$scratch/src/lib.rs"
  printf '[package]\nname = "headers"\nversion = "0.0.0"\nedition = "2024"\n[dependencies]\ntrtx-sys = "=0.9.1"\n[workspace]\n' \
    >"$scratch/Cargo.toml"
  cargo fetch --quiet --manifest-path "$scratch/Cargo.toml" >"$cache/tensorrt-headers.log" 2>&1 ||
    fail "cargo could not fetch trtx-sys: $(tail -n 1 "$cache/tensorrt-headers.log")
Is there a network, or a registry in cargo's configuration? $otherwise"
  manifest=$(cargo metadata --offline --format-version 1 --manifest-path "$scratch/Cargo.toml" 2>/dev/null |
    python3 -c 'import json, sys; print(*(p["manifest_path"] for p in json.load(sys.stdin)["packages"] if p["name"] == "trtx-sys"))')
  has_sum "$sum" "$(dirname "$manifest")/TensorRT-Headers/$folder/NvInferRuntime.h" ||
    fail "the headers in trtx-sys are not those that are pinned; they are not used. $otherwise"
  rm -rf "$directory" "$directory.part"
  cp -r "$(dirname "$manifest")/TensorRT-Headers/$folder" "$directory.part"
  mv "$directory.part" "$directory"
  rm -rf "$scratch"
  step "the headers of TensorRT are in $directory"
}
