# OpenVINO for the openvino backend: its C library, what that opens by itself for CPUs, and the readers of model formats, all beside each
# other. Plug-ins for GPUs and NPUs and the readers of PyTorch's, JAX's and GGUF's formats are left out.
openvino_version=2026.4.1
openvino_size="59 MB to load, 104 MB to keep"
openvino_licence="Apache-2.0, with notices of third parties"

fetch_openvino() {
  local version=$openvino_version
  local licences=openvino-$version.dist-info/licenses
  fetch_files "$1" "OpenVINO $version" "openvino==$version" 2d22b1da03f7caf74df30e9f6417d0ab2f637e4a38e08e1dcd294d2c37407aaf 59 \
    "Or get OpenVINO 2024.4 or later from elsewhere and name its libopenvino_c.so in CONCH_OPENVINO_LIBRARY." <<FILES
- $licences/LICENSE
- $licences/licensing/runtime-third-party-programs.txt LICENSE-runtime-third-party-programs.txt
- $licences/licensing/onednn_third-party-programs.txt LICENSE-onednn_third-party-programs.txt
- $licences/licensing/onetbb_third-party-programs.txt LICENSE-onetbb_third-party-programs.txt
d2d0836d422b21fc5da2739af0d6035df3fc6dd5e4756402eb848974edecf8a5 openvino/libs/libopenvino_c.so.2641
9b9a80ac1f18e07b13ed54459d9a865bcfe9dc170dbf8fe740c2974b85ecedc1 openvino/libs/libopenvino.so.2641
6599e3dd300d047b5ed72f8e48101c5f312c25321f35f57f803641ff8372900b openvino/libs/libopenvino_intel_cpu_plugin.so
3971fe197490e31479727aa761e8abc972f7967f67eaa39cac75859f1e19e017 openvino/libs/libopenvino_auto_plugin.so
1e7102276dd42ef917078a09be4f1838c41c3611ca2e10c34fb7ea31f1fef561 openvino/libs/libopenvino_auto_batch_plugin.so
387eec6f2341230ceb13e1cca0476fcee87ca0e9e2386e2a9db00e6cea8378a9 openvino/libs/libopenvino_hetero_plugin.so
554e9fd3d4a0fbc587c14379464b2324e24b8ea736cfb749ad2cd9e74dfc09e0 openvino/libs/libopenvino_ir_frontend.so.2641
82d499f5b5e8514def7aaa1ecd5a9f570542d33ae9d00a0077f707cccd0e0192 openvino/libs/libopenvino_onnx_frontend.so.2641
ab5ec31375add963e9ec7dc34793061c5c8851c5f97a9c0e78b487d99b27e148 openvino/libs/libopenvino_paddle_frontend.so.2641
4f1d789e3bfad9270ad726c8edf3764113415df3b3531a132cafb6527bea1796 openvino/libs/libopenvino_tensorflow_frontend.so.2641
37c15a95dad43623cbefa23fc23370bdc20e5c757ba35a04f846e8ac227a0ed6 openvino/libs/libopenvino_tensorflow_lite_frontend.so.2641
ac9518497a4f2cb6729792730f145ee58367316031511923fef263c9ac81ca61 openvino/libs/libtbb.so.12
0cccbdb4783bf190da19b34540fb7f749b0955ec1982d7ac8e5f398365399895 openvino/libs/libtbbmalloc.so.2
179ebd1223abd20a461dc978f24090d7ef7c1308b8dff14e4adfe4a21d75543f openvino/libs/libtbbbind_2_5.so.3
e91be9f5bc1c87aadb08f2e19ebcb742979adda0a5434f72650a154e317e7fb1 openvino/libs/libhwloc.so.15
FILES
}
