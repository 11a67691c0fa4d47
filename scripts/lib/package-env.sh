# Sourced after env.sh by what builds packages: the same source gives the same bytes, in any folder and at any time.
# scripts/reproducible shows it.

# scripts/dist has scripts/build-wasm source it once more.
if [ -n "${REDLATCH_PACKAGED:-}" ]; then return; fi
export REDLATCH_PACKAGED=1

# The time that files in archives have: that of the last commit.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$REDLATCH_ROOT" log -1 --format=%ct)}

# Messages of panics, and ring's C, hold the paths of sources. They become short, and name no folder of this machine.
redlatch_crates=${CARGO_HOME:-$HOME/.cargo}/registry/src
(cd "$REDLATCH_ROOT" && cargo fetch --quiet --locked)
RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$CARGO_TARGET_DIR=target --remap-path-prefix=$REDLATCH_ROOT=redlatch"
for redlatch_crates in "$redlatch_crates"/*; do
    RUSTFLAGS+=" --remap-path-prefix=$redlatch_crates=crates"
    CFLAGS="${CFLAGS:-} -ffile-prefix-map=$redlatch_crates=crates"
done
export RUSTFLAGS CFLAGS
unset redlatch_crates

# The names that programs link to stay.
export CARGO_PROFILE_RELEASE_STRIP=symbols

# A folder of its own, or every development build with optimisations would begin anew.
export CARGO_TARGET_DIR=$CARGO_TARGET_DIR/dist
