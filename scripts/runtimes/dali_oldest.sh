# The oldest DALI that is served, for the tests of the version floor.
dali_oldest_version=1.53.0
dali_oldest_size="205 MB to load, 400 MB to keep"
dali_oldest_licence="DALI: Apache-2.0, with parts under others; nvImageCodec: NVIDIA's"

fetch_dali_oldest() {
  fetch_dali_libraries "$1" "$dali_oldest_version" 177 f8f0f0a6216de4d7ab933c35bbf74c20e849fb042fc816995ab5fe3f437da277 \
    4372675827c0eadc3f5dd8e2be16da6dc658828b2384d6d68e22bd2edb7f2068 \
    0.7.0.11 28 6075220b7ece40b5d975969f423e4ff9bc6d02bae4ac64ff8c8bf67d1234b12e "Only tests use it."
}
