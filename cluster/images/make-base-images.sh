#!/usr/bin/env bash
# Makes the images that docker-compose.yml and the Dockerfile take from registries, on a machine that reaches none.
#
#   cluster/images/make-base-images.sh
#
# An image that is here already, or can be pulled, is left alone: then this does nothing. Otherwise a stand-in is made and
# tagged with the same name:
#
#   python      Debian 12 packages (debootstrap), Python 3.11, with this machine's CA bundle and pip settings
#   toxiproxy   this project's own link proxy (cluster/linkproxy), which speaks the same HTTP API
#   prometheus  Debian's package `prometheus` (an older release)
#   postgres    Debian's package `postgresql-15`, with the environment variables of the real image
#
# Stand-ins carry the label brownout.stand-in: `docker image ls --filter label=brownout.stand-in` shows them, and
# `docker image rm` with their names returns to the real ones. Needs root, debootstrap and a Debian mirror.
set -euo pipefail
cd "$(dirname "$0")/../.."

IMAGES=cluster/images
LABEL=brownout.stand-in
MOUNTED=/opt/machine # where the stand-in base keeps what it took over from this machine

say() { printf 'base images: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 3
}

# The names stand where they are used; read them there.
PYTHON=$(sed -n 's/^ARG PYTHON_IMAGE=//p' $IMAGES/Dockerfile)
TOXIPROXY=$(sed -n 's/^ *image: \(.*toxiproxy:.*\)$/\1/p' docker-compose.yml)
POSTGRES=$(sed -n 's/^ *image: \(postgres:.*\)$/\1/p' docker-compose.yml)
PROMETHEUS=$(sed -n 's/^ *image: \(prom\/prometheus:.*\)$/\1/p' docker-compose.yml)

made_here() { [[ -n $(docker image inspect --format "{{index .Config.Labels \"$LABEL\"}}" "$1" 2>/dev/null) ]]; }
recipe() { docker image inspect --format "{{index .Config.Labels \"$LABEL\"}}" "$1" 2>/dev/null; }
present() { docker image inspect "$1" >/dev/null 2>&1; }
pulled() { timeout 300 docker pull -q "$1" >/dev/null 2>&1; }

# The Debian mirror that this machine uses.
mirror() {
    local uri
    apt-get update -qq
    uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | sed -n 1p)
    [[ -n $uri ]] || die "no Debian source is configured on this machine; debootstrap needs a mirror"
    echo "$uri"
}

# Prints this machine's pip settings as a pip.conf for the image, and copies the CA bundle and wheel folders that it names.
take_over_pip() {
    local root=$1
    python3 - "$root" "$MOUNTED" <<'PY'
import configparser, pathlib, shutil, subprocess, sys

root, mounted = pathlib.Path(sys.argv[1]), pathlib.PurePosixPath(sys.argv[2])
listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
settings: dict[str, str] = {}
for line in listed.splitlines():
    name, _, value = line.partition("=")
    scope, _, key = name.rpartition(".")
    if scope in ("global", ":env:", "install"):
        value = value.strip("'\"").replace("\\n", "\n")
        settings[key] = value if scope == ":env:" else settings.get(key, value)

kept = {key: settings[key] for key in ("index-url", "trusted-host", "default-timeout", "proxy") if key in settings}
extra = [url for url in settings.get("extra-index-url", "").split() if not url.startswith("file:")]
if extra:
    kept["extra-index-url"] = " ".join(extra)

bundle = pathlib.Path(settings.get("cert", "/etc/ssl/certs/ca-certificates.crt"))
if bundle.is_file():
    shutil.copy(bundle, root / mounted.relative_to("/") / "ca-bundle.crt")
    kept["cert"] = str(mounted / "ca-bundle.crt")

links = []
for number, place in enumerate(settings.get("find-links", "").split()):
    folder = pathlib.Path(place.removeprefix("file://"))
    if folder.is_dir():
        target = mounted / f"wheels-{number}"
        shutil.copytree(folder, root / target.relative_to("/"))
        links.append(str(target))
    elif "://" in place:
        links.append(place)
if links:
    kept["find-links"] = "\n" + "\n".join(links)

config = configparser.ConfigParser(interpolation=None)
config["global"] = kept
with (root / "etc/pip.conf").open("w") as file:
    config.write(file)
PY
}

make_python() {
    [[ $(id -u) == 0 ]] || die "$PYTHON cannot be pulled; making a stand-in needs root"
    command -v debootstrap >/dev/null || die "$PYTHON cannot be pulled; making a stand-in needs debootstrap"
    local scratch uri
    uri=$(mirror)
    scratch=$(mktemp -d)
    # shellcheck disable=SC2064 # the folder of now, not of later
    trap "rm -rf '$scratch'" EXIT
    local root=$scratch/root
    say "$PYTHON: making a stand-in with debootstrap (about a minute)"
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" "$uri" \
        >"$scratch/log" 2>&1 || { tail -n 20 "$scratch/log" >&2; die "debootstrap failed; its log ends above"; }
    mkdir -p "$root$MOUNTED" "$root/usr/local/bin"
    take_over_pip "$root"
    ln -sf /usr/bin/python3 "$root/usr/local/bin/python"
    ln -sf /usr/bin/python3 "$root/usr/local/bin/python3"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/var/log/*.log \
        "$root"/usr/share/doc "$root"/usr/share/man "$root"/usr/share/locale
    if [[ -f $root$MOUNTED/ca-bundle.crt ]]; then
        echo "Acquire::https::CAInfo \"$MOUNTED/ca-bundle.crt\";" >"$root/etc/apt/apt.conf.d/90-machine"
    fi
    tar -C "$root" -c . | docker import \
        --change 'CMD ["python3"]' --change "LABEL $LABEL=$(recipe_of_python)" - "$PYTHON" >/dev/null
    rm -rf "$scratch"
    trap - EXIT
}

recipe_of_python() { { declare -f make_python take_over_pip; python3 -m pip config list 2>/dev/null; } | sha256sum | cut -c1-12; }

build() { DOCKER_BUILDKIT=1 docker build -q "$@" >/dev/null; }

make_toxiproxy() {
    say "$TOXIPROXY: building a stand-in from cluster/linkproxy"
    build --target light -t brownout-light -f $IMAGES/Dockerfile .
    build --target toxiproxy -t "$TOXIPROXY" --label "$LABEL=linkproxy" -f $IMAGES/stand-ins/Dockerfile .
}

make_prometheus() {
    say "$PROMETHEUS: building a stand-in from Debian's package"
    build --target prometheus -t "$PROMETHEUS" --label "$LABEL=debian" --build-arg PYTHON_IMAGE="$PYTHON" \
        -f $IMAGES/stand-ins/Dockerfile .
}

make_postgres() {
    say "$POSTGRES: building a stand-in from Debian's package"
    build --target postgres -t "$POSTGRES" --label "$LABEL=debian" --build-arg PYTHON_IMAGE="$PYTHON" \
        -f $IMAGES/stand-ins/Dockerfile .
}

if made_here "$PYTHON"; then
    [[ $(recipe "$PYTHON") == "$(recipe_of_python)" ]] || make_python
elif ! present "$PYTHON" && ! pulled "$PYTHON"; then
    make_python
fi
# A stand-in that exists is built again: from the cache, unless the code of the link proxy changed.
if made_here "$TOXIPROXY" || { ! present "$TOXIPROXY" && ! pulled "$TOXIPROXY"; }; then make_toxiproxy; fi
if made_here "$PROMETHEUS" || { ! present "$PROMETHEUS" && ! pulled "$PROMETHEUS"; }; then make_prometheus; fi
if made_here "$POSTGRES" || { ! present "$POSTGRES" && ! pulled "$POSTGRES"; }; then make_postgres; fi
say "ready: $PYTHON, $TOXIPROXY, $PROMETHEUS, $POSTGRES"
