# PyTorch for the pytorch backend. Of the wheel of torch only what runs on CPUs is kept: libtorch_cpu, libc10 and libgomp; and out of two
# small wheels of NVIDIA's the two libraries of CUDA that libtorch_cpu is linked with, though it needs neither driver nor GPU. Its
# headers are kept for scripts/build-torch-shim, which is called where there is a compiler.
pytorch_version=2.15.0
pytorch_size="554 MB to load, 500 MB to keep (40 MB of them headers)"
pytorch_licence="torch: BSD-3-Clause, with parts under others; CUDA runtime and CUPTI: NVIDIA's"

fetch_pytorch() {
  local directory=$1 otherwise="Or install torch yourself, build the shim with scripts/build-torch-shim <site-packages>/torch and name its \
libtorch_cpu.so in CONCH_PYTORCH_LIBRARY."
  only_on_x86_64 PyTorch "$otherwise"
  local cpu_sum=893d1a7de3f9a5a5c931718aae7f94db22256dda0a07e50912d8c75b7ebbfcaa
  if ! has_torch "$directory" "$pytorch_version" "$cpu_sum"; then
    step "fetching PyTorch $pytorch_version (554 MB)"
    fetch_of_nvidia "$directory" nvidia-cuda-runtime==13.2.86 3498247680dfddce31bad102af7e3e26fc795342a3cac64722bb0fa95e7f60f0 \
      nvidia_cuda_runtime-13.2.86.dist-info/licenses/License.txt nvidia/cu13/lib/libcudart.so.13 \
      862020da24ec4db58470c8dfad08e8753b417c459c115326edf15e9f574c92e3 "$otherwise"
    fetch_of_nvidia "$directory" nvidia-cuda-cupti==13.2.86 8fa29f15dd8336181f961764d9d95236fc6b931dd0c8fcf8cd70aab0c310b586 \
      nvidia_cuda_cupti-13.2.86.dist-info/licenses/License.txt nvidia/cu13/lib/libcupti.so.13 \
      df23b4e21d11bfb2c86b3159def62cbd2e6e660c70a9bf75bd4612a17bd40043 "$otherwise"
    fetch_torch "$directory" "$pytorch_version" 539 48c2d861134c0b5697c7602cb5ffa68f62a2989fdcd1717e593356f67996ca1e \
      d6e0f1bdcc3d69a3747f7a431318beebdc23fb9b26c391cceb18b5caf0dc4fd3 \
      bb1fe5b9b16d125c2725891fd124ee50b6264691981f0e4aafb371549e2c6e59 "$cpu_sum" "$otherwise"
  fi
  build_shim "$directory"
  echo "$directory/libtorch_cpu.so"
}

# Whether DIRECTORY has torch VERSION: DIRECTORY VERSION SUM-OF-LIBTORCH_CPU, the file that is unpacked last.
has_torch() {
  has_sum "$3" "$1/libtorch_cpu.so" && step "PyTorch $2 is there"
}

# A library out of a wheel of NVIDIA's: DIRECTORY REQUIREMENT SUM LICENCE LIBRARY SUM-OF-IT OTHERWISE.
fetch_of_nvidia() {
  local wheel
  wheel=$(fetch_wheel "$2" "$3" "$7" 15)
  unpack "$wheel" "$4" "" "$1/LICENSE-nvidia"
  unpack "$wheel" "$5" "$6" "$1/$(basename "$5")"
  rm -f "$wheel"
}

# What is kept of torch's wheel: DIRECTORY VERSION MB SUM SUM-OF-LIBGOMP SUM-OF-LIBC10 SUM-OF-LIBTORCH_CPU OTHERWISE.
fetch_torch() {
  local directory=$1 version=$2 wheel
  wheel=$(fetch_wheel "torch==$version" "$4" "$8" "$3")
  step "unpacking it"
  unpack "$wheel" "torch-$version.dist-info/licenses/LICENSE" "" "$directory/LICENSE"
  unpack_headers "$wheel" "$directory"
  unpack "$wheel" torch/lib/libgomp.so.1 "$5" "$directory/libgomp.so.1"
  unpack "$wheel" torch/lib/libc10.so "$6" "$directory/libc10.so"
  unpack "$wheel" torch/lib/libtorch_cpu.so "$7" "$directory/libtorch_cpu.so"
  rm -f "$wheel"
  step "PyTorch $version is in $directory"
}

# Where there is a compiler.
build_shim() {
  scripts/build-torch-shim "$1" >/dev/null ||
    step "without the shim, TorchScript (model.pt) is not served; what AOTInductor compiled (model.pt2) is"
}

# Unpacks the headers in torch's WHEEL into DIRECTORY/include.
unpack_headers() {
  rm -rf "$2/include"
  python3 - "$1" "$2" <<'H' || fail "cannot unpack the headers from $1"
import pathlib, sys, zipfile
wheel, directory = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if name.startswith("torch/include/") and not name.endswith("/"):
            target = pathlib.Path(directory, name.removeprefix("torch/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
H
}
