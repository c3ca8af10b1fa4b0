# TensorFlow for the tensorflow backend: the two libraries with its C API out of the wheel for CPUs. TENSORFLOW_VERSION=2.12.0 fetches
# the oldest version that is served instead, for tests of the floor; give it a directory of its own.
tensorflow_version=${TENSORFLOW_VERSION:-2.21.0}
tensorflow_size="274 MB to load, 854 MB to keep"
tensorflow_licence="Apache-2.0, with notices of third parties"

fetch_tensorflow() {
  local directory=$1 version=$tensorflow_version wheel wheel_sum sum framework_sum licence mb
  local library=libtensorflow_cc.so.2 framework=libtensorflow_framework.so.2
  local otherwise="Or get libtensorflow_cc.so.2 of TensorFlow 2.12 or later from elsewhere and name it in CONCH_TENSORFLOW_LIBRARY."
  only_on_x86_64 TensorFlow "$otherwise"
  case $version in
    2.21.0)
      wheel_sum=2b847d217b02ee7731ed91431daf3250daa0196c3c94614d23be27232e6e5b6c
      sum=6505a4b9657e62100c6bdacb683957a395cb047725042945aaa50e40a71e429e
      framework_sum=f060b323b26ef80add21b9df9428de3aeaf2843d772c5bb098745f7abff3709b
      licence="tensorflow/include/LICENSE:LICENSE tensorflow/THIRD_PARTY_NOTICES.txt:THIRD_PARTY_NOTICES.txt" mb=274
      ;;
    2.12.0)
      wheel_sum=e8c7047552a2d759f3e65ac13e36dd24bb5fec2e6576e848287811ec44b3d62f
      sum=2c18d3d95bc0088e08361f9996711b85b749c3814df76b3cab3ec16f9b6db7ca
      framework_sum=3621472cd576791eb0d5e4947c3f87cae380bf5eb2bed5da698ef03552d6a458
      licence="tensorflow_cpu-2.12.0.dist-info/LICENSE:LICENSE" mb=232
      ;;
    *) fail "no TensorFlow $version is pinned; there are 2.21.0 and 2.12.0. $otherwise" ;;
  esac
  # The one that needs the other comes last, so that where it is, all is.
  if has_sum "$sum" "$directory/$library" && has_sum "$framework_sum" "$directory/$framework"; then
    step "TensorFlow $version is there"
  else
    step "fetching TensorFlow $version ($mb MB)"
    wheel=$(fetch_wheel "tensorflow-cpu==$version" "$wheel_sum" "$otherwise" "$mb")
    local file
    for file in $licence; do
      unpack "$wheel" "${file%%:*}" "" "$directory/${file##*:}"
    done
    unpack "$wheel" "tensorflow/$framework" "$framework_sum" "$directory/$framework"
    unpack "$wheel" "tensorflow/$library" "$sum" "$directory/$library"
    rm -f "$wheel"
    step "TensorFlow $version is in $directory"
  fi
  echo "$directory/$library"
}
