#!/usr/bin/env bash
# A container engine for machines that come without one: installs it from the distribution, starts it, stops it.
#
#   .ci/engine.sh start   install what is missing, start dockerd unless one answers already, wait until it does
#   .ci/engine.sh stop    stop the dockerd that `start` started, and no other
#   .ci/engine.sh status  exit 0 when an engine with Compose v2 answers
#
# Where an engine answers already (a laptop, Docker Desktop), `start` only looks for Compose v2. Needs root and apt for
# the rest. Images stay in the engine's data folder between runs, so that the second start builds nothing.
set -euo pipefail

STATE=${BROWNOUT_ENGINE_STATE:-${TMPDIR:-/tmp}/brownout-engine-$(id -u)}
PLUGINS=$HOME/.docker/cli-plugins
COMPOSE_SUITE=trixie # the first Debian release with Compose v2; its binary is static enough for bookworm

say() { printf 'engine: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}

answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }
has_plugin() { docker "$1" version >/dev/null 2>&1; }

apt_update_once() {
    [[ -n ${UPDATED:-} ]] && return
    apt-get update -qq
    UPDATED=1
}

apt_install() {
    apt_update_once
    say "installing $*"
    # The engine's own service would start (or fail to) behind our back: forbid it for this installation only.
    local policy=/usr/sbin/policy-rc.d ours=
    if [[ ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        ours=1
    fi
    local code=0
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >"$STATE/apt.log" 2>&1 || code=$?
    [[ -z $ours ]] || rm -f "$policy"
    ((code == 0)) || die "apt-get install $* failed; see $STATE/apt.log"
}

install_engine() {
    local missing=()
    command -v dockerd >/dev/null || missing+=(docker.io)
    command -v iptables >/dev/null || missing+=(iptables)
    command -v debootstrap >/dev/null || missing+=(debootstrap)
    ((${#missing[@]} == 0)) || apt_install "${missing[@]}"
    # Debian 13 ships the client apart from the engine.
    command -v docker >/dev/null || apt_install docker-cli
}

# Unpacks one package of $COMPOSE_SUITE without installing it: no source is added to the machine's own lists.
unpack_from_newer_suite() {
    local package=$1 apt=$STATE/apt uri
    apt_update_once
    uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | sed -n 1p)
    [[ -n $uri ]] || die "no Debian source is configured; install the Docker plugin '$package' by hand"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $COMPOSE_SUITE main" >"$apt/sources.list"
    local options=(-o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$apt/lists"
        -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
    [[ -n ${NEWER_UPDATED:-} ]] || apt-get "${options[@]}" update -qq
    NEWER_UPDATED=1
    (cd "$apt" && rm -f "$package"_*.deb && apt-get "${options[@]}" download -qq "$package")
    rm -rf "${apt:?}/$package"
    dpkg -x "$apt/$package"_*.deb "$apt/$package"
}

install_plugin() {
    local plugin=$1 package=docker-$1
    has_plugin "$plugin" && return
    command -v apt-get >/dev/null || die "the Docker plugin '$plugin' is missing; install it by hand"
    apt_update_once
    # On Debian 12 the package docker-compose is Compose v1, a program of another interface.
    if [[ $(apt-cache policy "$package" | awk '/Candidate:/ {print $2}') =~ ^(0|1\.[3-9]|2)\. ]]; then
        apt_install "$package"
    fi
    if ! has_plugin "$plugin"; then
        say "unpacking $package of Debian $COMPOSE_SUITE into $PLUGINS"
        unpack_from_newer_suite "$package"
        mkdir -p "$PLUGINS"
        local binary
        binary=$(find "$STATE/apt/$package" -type f -path "*/cli-plugins/docker-$plugin")
        install -m 755 "$binary" "$PLUGINS/docker-$plugin"
    fi
    has_plugin "$plugin" || die "the Docker plugin '$plugin' does not run; see 'docker $plugin version'"
}

# Identity of a process that survives reuse of its number: pid and start time.
identity() { awk -v pid="$1" '{print pid, $22}' "/proc/$1/stat" 2>/dev/null; }

# A dockerd that was killed leaves these files; where their numbers are in use again, the next one would believe them.
clear_stale_pid_files() {
    local file pid
    for file in /var/run/docker.pid /var/run/docker/containerd/containerd.pid; do
        [[ -s $file ]] || continue
        pid=$(<"$file")
        [[ $(cat "/proc/$pid/comm" 2>/dev/null) =~ ^(dockerd|containerd)$ ]] || rm -f "$file"
    done
}

mtu() {
    local device
    device=$(ip route show default 2>/dev/null | awk '{for (i = 1; i < NF; i++) if ($i == "dev") print $(i + 1); exit}')
    cat "/sys/class/net/$device/mtu" 2>/dev/null || echo 1500
}

wait_until_it_answers() {
    local pid=$1
    for _ in $(seq 1 120); do
        answers && return 0
        kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.5
    done
    return 1
}

start_engine() {
    [[ $(id -u) == 0 ]] || die "no engine answers, and starting one needs root; start Docker and try again"
    command -v apt-get >/dev/null || die "no engine answers, and only Debian's can be installed here; start Docker and try again"
    install_engine
    clear_stale_pid_files
    local options backend pid
    # The machine's iptables may speak nf_tables to a kernel that lacks it, or the other way round: take the one that works.
    for backend in nft legacy; do
        if [[ -x /usr/sbin/iptables-$backend ]]; then
            "/usr/sbin/iptables-$backend" -t nat -L >/dev/null 2>&1 || continue
            update-alternatives --set iptables "/usr/sbin/iptables-$backend" >/dev/null 2>&1 || true
        fi
        options=(--mtu "$(mtu)")
        say "starting dockerd (iptables: $backend; log: $STATE/dockerd.log)"
        setsid dockerd "${options[@]}" >"$STATE/dockerd.log" 2>&1 </dev/null &
        pid=$!
        if wait_until_it_answers "$pid"; then
            identity "$pid" >"$STATE/dockerd.pid"
            say "dockerd $(docker version --format '{{.Server.Version}}') answers," \
                "storage driver $(docker info --format '{{.Driver}}'), pid $pid"
            return
        fi
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
        clear_stale_pid_files
    done
    tail -n 20 "$STATE/dockerd.log" >&2
    die "dockerd did not come up; its log ends above"
}

stop_engine() {
    [[ -s $STATE/dockerd.pid ]] || return 0
    local recorded pid
    recorded=$(<"$STATE/dockerd.pid")
    pid=${recorded%% *}
    rm -f "$STATE/dockerd.pid"
    [[ $(identity "$pid") == "$recorded" ]] || return 0
    say "stopping dockerd, pid $pid"
    kill "$pid"
    for _ in $(seq 1 120); do
        kill -0 "$pid" 2>/dev/null || return 0
        sleep 0.5
    done
    die "dockerd, pid $pid, does not stop"
}

mkdir -p "$STATE"
case ${1:-} in
start)
    answers || start_engine
    install_plugin compose
    install_plugin buildx
    say "ready: engine $(docker version --format '{{.Server.Version}}'), compose $(docker compose version --short)"
    ;;
stop) stop_engine ;;
status) answers && has_plugin compose ;;
*)
    sed -n '2,9p' "$0" | cut -c3- >&2
    exit 4
    ;;
esac
