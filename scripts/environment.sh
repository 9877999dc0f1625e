# Sourced by the other scripts. `ensure_environment EXTRA...` makes .venv and installs weft into it, once for each state
# of pyproject.toml; `ensure_targets_environment` does the same for .venv-targets, which compiles for TPUs and GPUs that
# are not there. Running either again costs nothing.

unset CDPATH # with it, cd may go elsewhere, and prints where
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# Packages are installed without their bytecode, which is written as they are first imported. Were it not, as this would
# have it, each process of each start would compile all modules anew.
unset PYTHONDONTWRITEBYTECODE

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }

find_python() { # OLDEST, as in 3.11
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.12 python3.13 python3.11 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python; do
        if [ -n "$candidate" ] && "$candidate" -c "import sys; sys.exit(sys.version_info < (3, ${1#3.}))" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    say "Python $1 or newer is needed here; none was found. Set PYTHON to one."
    exit 1
}

ensure_environment() { ensure_installed .venv 3.11 "$@"; }

# Python 3.12 and the newest jax that weft runs on, with the compilers of both accelerators and the GPU interpreter.
# Apart from .venv, because a jax that finds an accelerator's library tries to start it.
ensure_targets_environment() { ensure_installed .venv-targets 3.12 targets; }

ensure_installed() { # FOLDER OLDEST_PYTHON EXTRA...
    local venv=$1 oldest=$2 python stamp wanted
    shift 2
    if [ ! -x "$venv/bin/python" ]; then
        python=$(find_python "$oldest")
        say "Making $venv with $("$python" --version)"
        "$python" -m venv "$venv"
    fi
    stamp=$venv/.installed-$(IFS=-; echo "${*:-plain}")
    wanted=$(cksum pyproject.toml)
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        install_into "$venv" "$@"
        echo "$wanted" >"$stamp"
    fi
}

install_into() { # FOLDER EXTRA...
    local venv=$1 extras
    shift
    extras=$(IFS=,; echo "$*")
    say "Installing weft${extras:+ with: $extras} (a few minutes the first time)"
    "$venv/bin/python" -m pip install --quiet --upgrade pip
    # --no-compile: all that is never imported would take a minute.
    case ",$extras," in *,test,*)
        # First and by version: other packages only ask for some torch, and would bring one with a GPU's libraries.
        "$venv/bin/python" -m pip install --quiet --no-compile --progress-bar on torch==2.13.0 ;;
    esac
    "$venv/bin/python" -m pip install --quiet --no-compile --progress-bar on --editable ".${extras:+[$extras]}"
}
