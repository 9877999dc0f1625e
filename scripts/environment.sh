# Sourced by the other scripts: `ensure_environment EXTRA...` makes .venv and installs weft into it, once for each state
# of pyproject.toml. Running it again costs nothing.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.12 python3.11; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    say "weft needs Python 3.11 or newer; none was found. Set PYTHON to one."
    exit 1
}

ensure_environment() {
    local python stamp wanted
    if [ ! -x .venv/bin/python ]; then
        python=$(find_python)
        say "Making .venv with $("$python" --version)"
        "$python" -m venv .venv
    fi
    stamp=.venv/.installed-$(IFS=-; echo "${*:-plain}")
    wanted=$(cksum pyproject.toml)
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        install "$@"
        echo "$wanted" >"$stamp"
    fi
}

install() {
    local extras
    extras=$(IFS=,; echo "$*")
    say "Installing weft${extras:+ with: $extras} (a few minutes the first time)"
    .venv/bin/python -m pip install --quiet --upgrade pip
    case ",$extras," in *,test,*)
        # First and by version: other packages only ask for some torch, and would bring one with a GPU's libraries.
        .venv/bin/python -m pip install --quiet --progress-bar on torch==2.13.0 ;;
    esac
    .venv/bin/python -m pip install --quiet --progress-bar on --editable ".${extras:+[$extras]}"
}
