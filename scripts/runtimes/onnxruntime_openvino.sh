# ONNX Runtime with the execution provider OpenVINO, for models of the onnxruntime backend that ask for the accelerator: both libraries
# and what they open, all beside each other.
onnxruntime_openvino_version=1.24.1
onnxruntime_openvino_size="84 MB to load, 130 MB to keep"
onnxruntime_openvino_licence="ONNX Runtime: MIT, with notices of third parties; OpenVINO and oneTBB: Apache-2.0"

fetch_onnxruntime_openvino() {
  local version=$onnxruntime_openvino_version
  fetch_files "$1" "ONNX Runtime $version with OpenVINO" "onnxruntime-openvino==$version" \
    3007c803634cc69c6d52af1dea7ce729d9bb62b9a11070fd2f959119199007a8 84 "Models that do not ask for the accelerator need it not." <<FILES
- onnxruntime/LICENSE
- onnxruntime/ThirdPartyNotices.txt
2d963a419b96018b79dfe63bb50120ddcb724149912a8a6d8ac747a557c089f4 onnxruntime/capi/libonnxruntime.so.$version
bf0159d2681d76e7de03fbd302a9204e5490f30816bd41826d57acf7a8dff363 onnxruntime/capi/libonnxruntime_providers_openvino.so
5e02c1ff90e7d71365264dbb6767c00f04a8b57a96cddbc0085c61fa1393250d onnxruntime/capi/libonnxruntime_providers_shared.so
ac9634b715a242a61644c77bc38f17508fe73f517e418027e2410f4bee004943 onnxruntime/capi/libopenvino.so.2541
034df890550ae9199fe5f8608c0df8fd0fe355f303bad56bea10bae14c14c3cb onnxruntime/capi/libopenvino_intel_cpu_plugin.so
f426710881d8c1a01d5ed6d7eaa076d923b19983d3ab3a18bb19d25dba7d8923 onnxruntime/capi/libopenvino_onnx_frontend.so.2541
6781dc6aa8b2ca237d0164258e70266a44667756c02a9a039782ec1d1a67b653 onnxruntime/capi/libtbb.so.12
FILES
}
