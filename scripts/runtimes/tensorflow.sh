# TensorFlow for the tensorflow backend: the two libraries with its C API out of the wheel for CPUs.
tensorflow_version=2.21.0
tensorflow_size="274 MB to load, 854 MB to keep"
tensorflow_licence="Apache-2.0, with notices of third parties"

fetch_tensorflow() {
  local version=$tensorflow_version
  fetch_files "$1" "TensorFlow $version" "tensorflow-cpu==$version" 2b847d217b02ee7731ed91431daf3250daa0196c3c94614d23be27232e6e5b6c 274 \
    "Or get libtensorflow_cc.so.2 of TensorFlow 2.12 or later from elsewhere and name it in CONCH_TENSORFLOW_LIBRARY." <<FILES
- tensorflow/include/LICENSE
- tensorflow/THIRD_PARTY_NOTICES.txt
6505a4b9657e62100c6bdacb683957a395cb047725042945aaa50e40a71e429e tensorflow/libtensorflow_cc.so.2
f060b323b26ef80add21b9df9428de3aeaf2843d772c5bb098745f7abff3709b tensorflow/libtensorflow_framework.so.2
FILES
}
