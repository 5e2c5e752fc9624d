#!/usr/bin/env bash
# suite.sh test [FILTER…]: runs burn programs on two nodes and compares them with flex; without a filter, also tests `meshtf burn`,
# saved models, failures, memory and plans. suite.sh bench [FILTER…]: measures training on two nodes and on burn's own remote server.
# `make test-burn` and `make bench-burn` build the programs and run this script.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/../mesh.sh"
built="${BUILT:-$here/target/release}"
what="${1:-test}"
shift || true

say "two nodes, each a process of its own"
start worker/0 --burn 127.0.0.1:0
start worker/1
door="$(grep -oE -m 1 'burn=[0-9.:]+' "$home/worker-0.log" | cut -d= -f2)"

# The number of tasks that the door knows: the first node finds the second after some time.
tasks() {
    exec 3<>"/dev/tcp/${door%:*}/${door##*:}"
    printf 'GET /devices HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$door" >&3
    grep -o 'job:worker/' <&3 | wc -l
    exec 3>&-
}
for _ in $(seq 1200); do
    [ "$(tasks)" -ge 2 ] && break
    sleep 0.05
done
[ "$(tasks)" -ge 2 ] || { say "worker/0 does not know worker/1 after 60 s"; exit 1; }

# serve NAME FLAG...: starts burn's own server, or the one that computes nothing.
serve() {
    local name=$1
    shift
    : >"$home/$name.log"
    "$built/server" "$@" >"$home/$name.log" 2>&1 &
    nodes+=($!)
    for _ in $(seq 1200); do
        [ -n "$(address "$name")" ] && return
        sleep 0.05
    done
    say "$name does not serve after 10 s"
    exit 1
}

address() { grep -oE -m 1 '^[0-9.:]+$' "$home/$1.log" || true; }

case "$what" in
test)
    say "suite --door $door $*"
    "$built/suite" --door "$door" "$@"
    if [ $# -eq 0 ]; then
        say "meshtf burn -- a program without a line for the mesh, with the nodes and without one"
        expected="$(BURN_DEVICE=flex "$built/plain")"
        [ "$("$meshtf" burn -- "$built/plain")" = "$expected" ] || { say "the answer differs"; exit 1; }
        alone="$(MESHTF_HOME="$home/alone" MESHTF_MESH="alone-$$" "$meshtf" burn -- "$built/plain")"
        [ "$alone" = "$expected" ] || { say "the answer without a node differs"; exit 1; }
        say "saved models, run by meshtf submit"
        MESHTF="$meshtf" "$built/capture" "$home"
        say "programs and tasks that are killed"
        MESHTF="$meshtf" "$built/faults"
        say "memory over 10,000 iterations"
        MESHTF="$meshtf" "$built/memory"
        say "plans over 1,000 iterations"
        MESHTF="$meshtf" "$built/steps" plans
    fi
    ;;
bench)
    serve server 127.0.0.1:0 2
    serve nothing --nothing 127.0.0.1:0 2
    server="$(address server)" nothing="$(address nothing)"
    say "bench --server $server --nothing $nothing --door $door $*"
    "$built/bench" --server "$server" --nothing "$nothing" --door "$door" --cpu "worker/0=${nodes[0]}" \
        --cpu "worker/1=${nodes[1]}" --cpu "burn's server=${nodes[2]}" --cpu "no kernels=${nodes[3]}" "$@"
    if [ $# -eq 0 ]; then
        say "cost of an operation at the door"
        MESHTF="$meshtf" "$built/steps" cost
    fi
    ;;
*)
    echo "suite.sh test|bench [FILTER…]" >&2
    exit 2
    ;;
esac
