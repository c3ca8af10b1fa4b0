# The oldest PyTorch that is served, for the tests of the version floor.
pytorch_oldest_version=2.10.0
pytorch_oldest_size="927 MB to load, 500 MB to keep (40 MB of them headers)"
pytorch_oldest_licence="torch: BSD-3-Clause, with parts under others; CUDA runtime and CUPTI: NVIDIA's"

fetch_pytorch_oldest() {
  local directory=$1 otherwise="Only tests use it."
  only_on_x86_64 PyTorch "$otherwise"
  local cpu_sum=7f3318fa630d1c984e6ff8826e95cc45d049fa2f3043e7080fb3c4ccdcfaf466
  if ! has_torch "$directory" "$pytorch_oldest_version" "$cpu_sum"; then
    step "fetching PyTorch $pytorch_oldest_version (927 MB)"
    fetch_of_nvidia "$directory" nvidia-cuda-runtime-cu12==12.8.90 adade8dcbd0edf427b7204d480d6066d33902cab2a4707dcfc48a2d0fd44ab90 \
      nvidia_cuda_runtime_cu12-12.8.90.dist-info/License.txt nvidia/cuda_runtime/lib/libcudart.so.12 \
      c3a75b33af334a3486d197dbd1584a2985183ba4688d237a2be5f2f679329920 "$otherwise"
    fetch_of_nvidia "$directory" nvidia-cuda-cupti-cu12==12.8.90 ea0cb07ebda26bb9b29ba82cda34849e73c166c18162d3913575b0c9db9a6182 \
      nvidia_cuda_cupti_cu12-12.8.90.dist-info/License.txt nvidia/cuda_cupti/lib/libcupti.so.12 \
      fccdc5fcc7c32f8cf4b3ed9b17f7f187a185a6fa0a5bcc06e3434cbd1687c808 "$otherwise"
    fetch_torch "$directory" "$pytorch_oldest_version" 916 ac5bdcbb074384c66fa160c15b1ead77839e3fe7ed117d667249afce0acabfac \
      59badd7c550c340a23d217c37232a4bac6e66a99f47aa273a0a0393bc7c68ddb \
      10976d2a98e0f9807e8c1f44d930c5ec4e07af7049cd02cc48d5177f952a7dfb "$cpu_sum" "$otherwise"
  fi
  build_shim "$directory"
  echo "$directory/libtorch_cpu.so"
}
