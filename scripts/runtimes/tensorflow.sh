# TensorFlow for the tensorflow backend: the two libraries with its C API out of the wheel for CPUs.
tensorflow_version=2.21.0
tensorflow_size="274 MB to load, 854 MB to keep"
tensorflow_licence="Apache-2.0, with notices of third parties"

fetch_tensorflow() {
  local wheel_sum=2b847d217b02ee7731ed91431daf3250daa0196c3c94614d23be27232e6e5b6c
  local sum=6505a4b9657e62100c6bdacb683957a395cb047725042945aaa50e40a71e429e
  local framework_sum=f060b323b26ef80add21b9df9428de3aeaf2843d772c5bb098745f7abff3709b
  fetch_tensorflow_libraries "$1" "$tensorflow_version" 274 "$wheel_sum" "$sum" "$framework_sum" \
    "Or get libtensorflow_cc.so.2 of TensorFlow 2.12 or later from elsewhere and name it in CONCH_TENSORFLOW_LIBRARY." \
    tensorflow/include/LICENSE:LICENSE tensorflow/THIRD_PARTY_NOTICES.txt:THIRD_PARTY_NOTICES.txt
}

# Into DIRECTORY those of VERSION, whose wheel has so many MB: the sums of the wheel and of the libraries, what else to do, and files
# to keep as `<in the wheel>:<name>`.
fetch_tensorflow_libraries() {
  local directory=$1 version=$2 mb=$3 wheel_sum=$4 sum=$5 framework_sum=$6 otherwise=$7 wheel file
  local library=libtensorflow_cc.so.2 framework=libtensorflow_framework.so.2
  shift 7
  only_on_x86_64 TensorFlow "$otherwise"
  if has_sum "$sum" "$directory/$library" && has_sum "$framework_sum" "$directory/$framework"; then
    step "TensorFlow $version is there"
  else
    step "fetching TensorFlow $version ($mb MB)"
    wheel=$(fetch_wheel "tensorflow-cpu==$version" "$wheel_sum" "$otherwise" "$mb")
    for file in "$@"; do
      unpack "$wheel" "${file%%:*}" "" "$directory/${file##*:}"
    done
    # The one that needs the other comes last, so that where it is, all is.
    unpack "$wheel" "tensorflow/$framework" "$framework_sum" "$directory/$framework"
    unpack "$wheel" "tensorflow/$library" "$sum" "$directory/$library"
    rm -f "$wheel"
    step "TensorFlow $version is in $directory"
  fi
  echo "$directory/$library"
}
