# DALI for the dali backend: its libraries out of the wheel, without the modules for Python, and nvImageCodec, which decodes images,
# without what needs further libraries for GPUs. DALI looks for nvImageCodec beside itself, and that for its extensions below itself.
dali_version=2.4.0
dali_size="224 MB to load, 423 MB to keep"
dali_licence="DALI: Apache-2.0, with parts under others; nvImageCodec: NVIDIA's"

fetch_dali() {
  fetch_dali_libraries "$1" "$dali_version" 199 fbfd3204b55924bfc53354bff766bcf37165f8bca1674c59ad4ffd8096898877 \
    0645b94c360ef317b2c3c056077dd190c2964b510a0f561131d644db8db44838 \
    0.9.0.20 25 b59bbb223d11065abb7da81e27a2015d15db5d5535639cdc5050e4154a00800a \
    "Or install DALI 1.53 or later for Python and name the libdali.so in its package nvidia/dali in CONCH_DALI_LIBRARY."
}

# Into DIRECTORY those of VERSION, whose wheel has so many MB: the sums of the wheel and of the library of operators; version, MB and
# sum of the wheel of nvImageCodec; what else to do.
fetch_dali_libraries() {
  local directory=$1 version=$2 mb=$3 wheel_sum=$4 sum=$5 codec=$6 codec_mb=$7 codec_sum=$8 otherwise=$9 wheel file
  only_on_x86_64 DALI "$otherwise"
  # The largest library comes last: where it is, all are.
  if has_sum "$sum" "$directory/libdali_operators.so"; then
    step "DALI $version is there"
  else
    step "fetching DALI $version ($((mb + codec_mb)) MB)"
    wheel=$(fetch_wheel "nvidia-nvimgcodec-cu13==$codec" "$codec_sum" "$otherwise" "$codec_mb")
    unpack "$wheel" "nvidia_nvimgcodec_cu13-$codec.dist-info/licenses/LICENSE.txt" "" "$directory/LICENSE-nvimgcodec.txt"
    for file in libnvimgcodec.so.0 extensions/lib{jpeg_turbo,tiff,opencv,nvbmp,nvpnm}_ext.so."${codec%.*}"; do
      unpack "$wheel" "nvidia/nvimgcodec/$file" "" "$directory/$file"
    done
    rm -f "$wheel"
    wheel=$(fetch_wheel "nvidia-dali-cuda130==$version" "$wheel_sum" "$otherwise" "$mb")
    step "unpacking it"
    unpack "$wheel" nvidia/dali/LICENSE "" "$directory/LICENSE"
    unpack "$wheel" nvidia/dali/COPYRIGHT "" "$directory/NOTICE-copyright"
    unpack "$wheel" nvidia/dali/Acknowledgements.txt "" "$directory/NOTICE-acknowledgements.txt"
    while read -r file; do
      unpack "$wheel" "$file" "" "$directory/.libs/$(basename "$file")"
    done < <(files_below "$wheel" nvidia/dali/.libs/)
    for file in libdali_core.so libdali_kernels.so libdali.so; do
      unpack "$wheel" "nvidia/dali/$file" "" "$directory/$file"
    done
    unpack "$wheel" nvidia/dali/libdali_operators.so "$sum" "$directory/libdali_operators.so"
    rm -f "$wheel"
    step "DALI $version is in $directory"
  fi
  echo "$directory/libdali.so"
}

# The files of a WHEEL below a FOLDER, a line each.
files_below() {
  python3 - "$@" <<'L'
import sys, zipfile
wheel, folder = sys.argv[1:]
print(*(name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(folder) and not name.endswith("/")), sep="\n")
L
}
