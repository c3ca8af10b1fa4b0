# DALI for the dali backend: its libraries out of the wheel, without the modules for Python, and nvImageCodec, which decodes images,
# without what needs further libraries for GPUs. Both keep the folders of their wheels, since they find each other by these.
dali_version=2.4.0
dali_size="224 MB to load, 423 MB to keep"
dali_licence="DALI: Apache-2.0, with parts under others; nvImageCodec: NVIDIA's"

fetch_dali() {
  local directory=$1 version=$dali_version codec=0.9.0.20 wheel file
  local otherwise="Or install DALI for Python and name the libdali.so in its package nvidia/dali in CONCH_DALI_LIBRARY."
  local operators=nvidia/dali/libdali_operators.so
  local operators_sum=0645b94c360ef317b2c3c056077dd190c2964b510a0f561131d644db8db44838
  only_on_x86_64 DALI "$otherwise"
  # The largest library comes last: where it is there, all are.
  if has_sum "$operators_sum" "$directory/$operators"; then
    step "DALI $version is there"
  else
    step "fetching DALI $version (224 MB)"
    wheel=$(fetch_wheel "nvidia-nvimgcodec-cu13==$codec" b59bbb223d11065abb7da81e27a2015d15db5d5535639cdc5050e4154a00800a "$otherwise" 25)
    unpack "$wheel" "nvidia_nvimgcodec_cu13-$codec.dist-info/licenses/LICENSE.txt" "" "$directory/LICENSE-nvimgcodec.txt"
    for file in libnvimgcodec.so.0 extensions/lib{jpeg_turbo,tiff,opencv,nvbmp,nvpnm}_ext.so.0.9.0; do
      unpack "$wheel" "nvidia/nvimgcodec/$file" "" "$directory/nvidia/nvimgcodec/$file"
    done
    rm -f "$wheel"
    wheel=$(fetch_wheel "nvidia-dali-cuda130==$version" fbfd3204b55924bfc53354bff766bcf37165f8bca1674c59ad4ffd8096898877 "$otherwise" 199)
    step "unpacking it"
    unpack "$wheel" nvidia/dali/LICENSE "" "$directory/LICENSE"
    unpack "$wheel" nvidia/dali/COPYRIGHT "" "$directory/NOTICE-copyright"
    unpack "$wheel" nvidia/dali/Acknowledgements.txt "" "$directory/NOTICE-acknowledgements.txt"
    while read -r file; do
      unpack "$wheel" "$file" "" "$directory/$file"
    done < <(files_below "$wheel" nvidia/dali/.libs/)
    for file in libdali_core.so libdali_kernels.so libdali.so; do
      unpack "$wheel" "nvidia/dali/$file" "" "$directory/nvidia/dali/$file"
    done
    unpack "$wheel" "$operators" "$operators_sum" "$directory/$operators"
    rm -f "$wheel"
    step "DALI $version is in $directory"
  fi
  echo "$directory/nvidia/dali/libdali.so"
}

# The files of a WHEEL below a FOLDER, a line each.
files_below() {
  python3 - "$@" <<'L'
import sys, zipfile
wheel, folder = sys.argv[1:]
print(*(name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(folder) and not name.endswith("/")), sep="\n")
L
}
