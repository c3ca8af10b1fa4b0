# The oldest TensorFlow that is served, for the tests of the version floor.
tensorflow_oldest_version=2.12.0
tensorflow_oldest_size="232 MB to load, 578 MB to keep"
tensorflow_oldest_licence="Apache-2.0"

fetch_tensorflow_oldest() {
  local version=$tensorflow_oldest_version
  fetch_files "$1" "TensorFlow $version" "tensorflow-cpu==$version" e8c7047552a2d759f3e65ac13e36dd24bb5fec2e6576e848287811ec44b3d62f 232 \
    "Only tests use it." <<FILES
- tensorflow_cpu-$version.dist-info/LICENSE
2c18d3d95bc0088e08361f9996711b85b749c3814df76b3cab3ec16f9b6db7ca tensorflow/libtensorflow_cc.so.2
3621472cd576791eb0d5e4947c3f87cae380bf5eb2bed5da698ef03552d6a458 tensorflow/libtensorflow_framework.so.2
FILES
}
