# Sourced by the demos: starts nodes as separate processes, and ends them with the script. They have a home folder and a mesh name
# of their own, so that they do not meet the nodes of another mesh of this user.
meshtf="${MESHTF:-meshtf}"
home="$(mktemp -d "${TMPDIR:-/tmp}/meshtf-demo.XXXXXX")"
export MESHTF_HOME="$home" MESHTF_MESH="demo-$$"
unset MESHTF_PEERS
nodes=()

say() { if [ -t 1 ]; then printf '\033[1;36m▸ %s\033[0m\n' "$*"; else printf '▸ %s\n' "$*"; fi; }

stop() {
    local result=$?
    if [ "${#nodes[@]}" -gt 0 ]; then
        say "stopping the nodes"
        kill -TERM "${nodes[@]}" 2>/dev/null || true
        wait "${nodes[@]}" 2>/dev/null || true
    fi
    if [ "$result" -ne 0 ]; then
        for log in "$home"/*.log; do
            [ -e "$log" ] && { say "$(basename "$log")"; cat "$log"; }
        done
    fi
    rm -rf "$home"
    exit "$result"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# start NAME FLAG...: starts a node and waits until it serves.
start() {
    local name=$1 log="$home/${1//\//-}.log"
    shift
    : >"$log"
    "$meshtf" node --name "$name" --listen 127.0.0.1:0 "$@" >"$log" 2>&1 &
    nodes+=($!)
    # The node prints a line when it serves.
    for _ in $(seq 1200); do
        if grep -q ' serves' "$log"; then
            say "$(grep -m 1 ' serves' "$log")"
            return
        fi
        kill -0 "${nodes[-1]}" 2>/dev/null || { say "$name ended before it served"; exit 1; }
        sleep 0.05
    done
    say "$name does not serve after 10 s"
    exit 1
}
