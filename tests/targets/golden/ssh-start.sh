#!/bin/bash
# words: 1 × 2 ranks. Made by Headway VERSION.

# Only the supervisor reads the secrets on standard input: move them to descriptor 3. The commands below get no input.
exec 3<&0 </dev/null
fail() { echo "headway: $1" >&2; exit 1; }
cd "$HEADWAY_CODE_DIR" || fail "no $HEADWAY_CODE_DIR"

# -- setup: at every start, in this shell, so that its exports stay in effect
{
sudo mount /data
} || fail 'setup: sudo mount /data'
cd "$HEADWAY_CODE_DIR" || exit

# -- one environment per set of requirements, made by uv, which also installs Python, or by pip
env="$HEADWAY_DIR/envs/KEY"
mkdir -p "$HEADWAY_DIR/envs" && exec 9> "$env.lock" && flock 9
if [ ! -e "$env/ready" ]; then
  rm -rf "$env"
  PATH="$PATH:$HOME/.local/bin"
  if command -v uv > /dev/null; then
    uv venv --python 3.11 "$env" || fail "uv cannot make an environment with Python 3.11"
    install() { uv pip install --python "$env/bin/python" "$@"; }
  else
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
      || fail "Python here is older than 3.10: curl -LsSf https://astral.sh/uv/install.sh | sh, or name \`python\`"
    python3 -m venv "$env" || fail "no virtual environment could be made: apt-get install python3-venv"
    install() { "$env/bin/python" -m pip install --disable-pip-version-check "$@"; }
  fi
  install --requirement requirements.txt || fail "the requirements cannot be installed"
  install --requirement "$HEADWAY_PLACE/headway.txt" || fail "the requirements of Headway cannot be installed"
  touch "$env/ready"
fi
exec 9>&-
python="$env/bin/python"

# -- replace this shell by the supervisor
exec "$python" -m headway.runtime.worker --run "$HEADWAY_RUN_URL" <&3 3<&-
