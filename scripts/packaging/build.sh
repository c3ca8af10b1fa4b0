# Read by scripts/package and scripts/record-profile: builds what ships. Both build the same crates for the same target, so that functions
# have the same names: by these a profile is found again.

# Crates that ship as libraries, and what each becomes below the root.
plugins=(src/backends/*/Cargo.toml src/agents/*/Cargo.toml)

# Builds into $1, with further FLAGS of rustc, and sets `built` to where it lies: WHAT DIRECTORY FLAGS...
build_shipped() {
  local what=$1 build=$2 triple sysroot maps words=(-p conch -p conch-libtritonserver) manifest
  shift 2
  for manifest in "${plugins[@]}"; do
    grep -q '"cdylib"' "$manifest" && words+=(-p "$(sed -n 's/^name = "\(conch-.*\)"/\1/p' "$manifest" | head -n 1)")
  done
  triple=$(rustc -vV | sed -n 's/^host: //p')
  # Of two that fit a path, the later one counts.
  sysroot=$(rustc --print sysroot)
  maps=("$sysroot=/rust" "${CARGO_HOME:-$HOME/.cargo}=/cargo" "$PWD=/conch" "$build=/build")
  # A target directory of its own: other flags than a developer's builds would have each build everything anew. With --target, what
  # only the build runs has none of the flags.
  export CARGO_TARGET_DIR=$build RUSTFLAGS="${maps[*]/#/--remap-path-prefix=}${*:+ $*}" CFLAGS="${maps[*]/#/-ffile-prefix-map=}"
  CXXFLAGS=$CFLAGS quietly "$what" cargo build --release --locked --target "$triple" "${words[@]}"
  built=$build/$triple/release
}
