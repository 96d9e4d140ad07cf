#!/usr/bin/env bash
# PostgreSQL's programs for the tests, which start servers of their own: installed from the distribution where they are
# missing. No server is set up or started. Needs root and apt for that.
set -euo pipefail

say() { printf 'postgres: %s\n' "$*" >&2; }

installed() { compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null; }

if ! installed; then
    [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || {
        say "PostgreSQL is not installed, and installing it needs root and apt; install it by hand"
        exit 1
    }
    # The package would make a server of its own, and start it.
    mkdir -p /etc/postgresql-common/createcluster.d
    echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.d/brownout.conf
    say "installing Debian's package"
    log=$(mktemp)
    {
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends postgresql
    } >"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        say "apt-get install postgresql failed; its log ends above"
        exit 1
    }
    rm -f "$log"
fi
say "ready: $(compgen -G '/usr/lib/postgresql/*/bin/postgres' | tail -n 1 || command -v postgres)"
