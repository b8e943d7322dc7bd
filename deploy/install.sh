#!/usr/bin/env bash
# Installs Sextant on a machine with systemd (Debian 12 or later), or into a directory that becomes one: binary, units,
# user, directories, and what is this host's of a cluster's configuration and certificates.
# Run again it changes what differs.
# Everything is looked at before anything is changed. docs/deployment.md
set -euo pipefail
umask 022
unset CDPATH

readonly NAME=deploy/install.sh
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here

readonly BINARY=/usr/local/bin/sextant
readonly CONFIG=/etc/sextant
readonly TLS=/etc/sextant/tls
readonly DATA=/var/lib/sextant
readonly UNITS=/etc/systemd/system
readonly WANTS=$UNITS/multi-user.target.wants
readonly SYSUSERS=/etc/sysusers.d/sextant.conf
readonly TMPFILES=/etc/tmpfiles.d/sextant.conf
readonly ROLES=(memtable sstable pnode)
# The user and the group that the servers run as.
readonly SERVICE=sextant

usage() {
    cat <<END
Installs Sextant on this machine: the binary, systemd units, the user $SERVICE and its directories.
Run again it changes what differs, and says so.

deploy/install.sh [OPTIONS]
  --binary FILE         the binary to install (default: target/release/sextant); servers that run are not disturbed
  --config DIR          copies configuration to $CONFIG: cluster.toml, and ROLE-ID.toml of the servers named by
                        --enable, or else of all in DIR
  --tls DIR             copies certificates and keys of the servers that have configuration here to $TLS,
                        and ca.pem; never ca.key
  --force               overwrites configuration and certificates that are there and differ
  --enable ROLE-ID..    starts these servers, now and whenever the machine starts: --enable memtable-1 pnode-1
  --root DIR            installs into this directory (a chroot, an image); starts nothing, asks no systemd
  --uninstall           stops the servers and removes binary and units; leaves configuration and data
  --help

Exit codes: 0 done; 1 a server did not start, or something failed half-way; 2 refused, nothing was changed.
END
}

# Nothing was changed.
refuse() {
    printf '%s: %s\n' "$NAME" "$*" >&2
    exit 2
}

changes=0
# A line for each change.
did() {
    printf '%s\n' "$*"
    changes=$((changes + 1))
}
note() { printf 'note: %s\n' "$*"; }

binary='' config='' tls='' root='' force='' uninstall='' is_rooted=''
enable=()

parse() {
    while (($#)); do
        case $1 in
            --binary=* | --config=* | --tls=* | --root=* | --enable=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
        esac
        case $1 in
            --help | -h)
                usage
                exit 0
                ;;
            --force) force=1 ;;
            --uninstall) uninstall=1 ;;
            --binary | --config | --tls | --root)
                [[ -n ${2-} && $2 != --* ]] || refuse "$1: which?"
                case $1 in
                    --binary) binary=$2 ;;
                    --config) config=$2 ;;
                    --tls) tls=$2 ;;
                    --root) root=$2 is_rooted=1 ;;
                esac
                shift
                ;;
            --enable)
                [[ -n ${2-} && $2 != --* ]] || refuse "$1: which? For instance $1 memtable-1"
                local servers
                while [[ -n ${2-} && $2 != --* ]]; do
                    IFS=', ' read -ra servers <<<"$2"
                    enable+=("${servers[@]}")
                    shift
                done
                ;;
            *) refuse "$1: no such option (--help lists them)" ;;
        esac
        shift
    done
}

is_server() { [[ $1 =~ ^(memtable|sstable|pnode)-[1-9][0-9]*$ ]]; }
unit_of() { printf 'sextant-%s@%s.service' "${1%-*}" "${1##*-}"; }
template_of() { printf 'sextant-%s@.service' "${1%-*}"; }

# The names of servers that have a file ROLE-ID.toml in a directory.
servers_in() {
    local file server
    for file in "$1"/*-*.toml; do
        server=$(basename "$file" .toml)
        if [[ -f $file ]] && is_server "$server"; then printf '%s\n' "$server"; fi
    done
}

is_root() { [[ $(id -u) == 0 ]]; }

check_machine() {
    if [[ $is_rooted ]]; then
        [[ -d $root ]] || refuse "--root $root: no such directory"
        root=$(cd "$root" && pwd -P)
        [[ -w $root ]] || refuse "--root $root: $(id -un) may not write to it"
        root=${root%/}
    else
        is_root || refuse "only root may do that (or name a directory that is yours: --root DIR)"
        [[ -d /run/systemd/system ]] || refuse "systemd does not run this machine (into an image: --root DIR)"
    fi
}

check_binary() {
    local built=${CARGO_TARGET_DIR:-$here/../target}/release/sextant
    if [[ -z $binary ]]; then
        [[ -f $built ]] ||
            refuse "no target/release/sextant: cargo build --release --bin sextant, or name one with --binary FILE"
        binary=$built
    fi
    [[ -f $binary ]] || refuse "--binary $binary: no such file"
    [[ -x $binary ]] || refuse "--binary $binary: not executable"
    # Not one of that name that is in PATH.
    if [[ $binary != */* ]]; then binary=./$binary; fi
    [[ $("$binary" --version 2>/dev/null) == "sextant "* ]] ||
        refuse "--binary $binary: it does not run on this machine, or is not Sextant"
}

# What is copied, by the names of the files; and all servers that have configuration here when it is.
config_files=() tls_files=() servers=()

plan_config() {
    local server file
    local -A is_wanted=()
    for server in "${enable[@]}"; do
        is_server "$server" || refuse "--enable $server: neither memtable-ID, sstable-ID nor pnode-ID"
        is_wanted[$server]=1
    done
    if [[ $config ]]; then
        [[ -d $config ]] || refuse "--config $config: no such directory"
        for server in $(servers_in "$config"); do
            if ((${#enable[@]} == 0)) || [[ ${is_wanted[$server]-} ]]; then config_files+=("$server.toml"); fi
        done
        ((${#config_files[@]})) || refuse "--config $config: no configuration of this host's servers (ROLE-ID.toml)"
        if [[ -f $config/cluster.toml ]]; then config_files+=(cluster.toml); fi
        for file in "${config_files[@]}"; do differs_not "$config/$file" "$CONFIG/$file"; done
    fi
}

# Refuses what would be overwritten.
differs_not() {
    [[ -r $1 ]] || refuse "$1: cannot be read"
    [[ $force || ! -e $root$2 ]] || cmp -s "$1" "$root$2" ||
        refuse "$2 differs from $1 (--force overwrites it)"
}

# The configuration as it would be, to the binary that would read it.
check_config() {
    local file server answer id files=()
    mkdir "$work/config"
    for file in "$root$CONFIG"/*.toml; do
        if [[ -f $file ]]; then cp "$file" "$work/config/"; fi
    done
    for file in "${config_files[@]}"; do cp "$config/$file" "$work/config/"; done
    # (A file: in a chroot there may be no /dev/fd.)
    servers_in "$work/config" >"$work/servers"
    mapfile -t servers <"$work/servers"
    for server in "${servers[@]}"; do files+=("$work/config/$server.toml"); done
    if ((${#files[@]})) && ! answer=$("$binary" config check "${files[@]}" 2>&1); then
        refuse "sextant config check: $(grep -m 1 '^error: ' <<<"${answer//"$work/config/"/}" || printf '%s' "$answer")"
    fi
    for server in "${servers[@]}"; do
        id=$(sed -n '/^ *\[/q; s/^ *id *= *\([0-9]*\).*/\1/p' "$work/config/$server.toml")
        [[ -z $id || $id == "${server##*-}" ]] || refuse "$server.toml: it is the configuration of number $id"
    done
    for server in "${enable[@]}"; do
        [[ -f $work/config/$server.toml ]] ||
            refuse "--enable $server: no $CONFIG/$server.toml${config:+, nor one in $config}"
    done
}

plan_tls() {
    [[ $tls ]] || return 0
    [[ -d $tls ]] || refuse "--tls $tls: no such directory"
    [[ -f $tls/ca.pem ]] || refuse "--tls $tls: no ca.pem"
    ((${#servers[@]})) || refuse "--tls $tls: whose? No server has configuration here (--config DIR)"
    tls_files=(ca.pem)
    local server file
    for server in "${servers[@]}"; do
        for file in "$server.pem" "$server.key"; do
            [[ -f $tls/$file ]] || refuse "--tls $tls: no $file (sextant cert server $server.toml)"
            tls_files+=("$file")
        done
    done
    for file in "${tls_files[@]}"; do differs_not "$tls/$file" "$TLS/$file"; done
}

# The group of the servers, as the machine that is installed knows it; empty if nothing can be given to it.
group=
find_group() {
    group=
    if is_root && [[ -f $root/etc/group ]]; then
        group=$(awk -F: -v name="$SERVICE" '$1 == name { print $3 }' "$root/etc/group")
    fi
}

# What the functions below answer: whether they changed something. (As an exit code it would hide what fails in them.)
is_changed=''

# owned PATH MODE GROUP: GROUP is root, or that of the servers.
owned() {
    local path=$root$1 mode=$2 gid=0
    is_changed=''
    if [[ $3 == "$SERVICE" ]]; then gid=$group; fi
    if is_root && [[ $gid && $(stat -Lc %u:%g "$path") != "0:$gid" ]]; then
        chown "0:$gid" "$path"
        is_changed=1
    fi
    if [[ $(stat -Lc %a "$path") != "${mode#0}" ]]; then
        chmod "$mode" "$path"
        is_changed=1
    fi
}

# directory PATH MODE GROUP
directory() {
    if [[ -d $root$1 ]]; then
        owned "$1" "$2" "$3"
        if [[ $is_changed ]]; then did "set mode and owner of $1/"; fi
        return
    fi
    mkdir -p "$(dirname "$root$1")"
    mkdir -m 0700 "$root$1"
    owned "$1" "$2" "$3"
    did "made $1/"
}

# put SOURCE PATH MODE GROUP. The new file takes the old one's place in one step: who runs that, or reads it, goes on.
put() {
    local new=$root$2 verb=installed
    if [[ -f $new ]] && cmp -s "$1" "$new"; then
        owned "$2" "$3" "$4"
        if [[ $is_changed ]]; then did "set mode and owner of $2"; fi
        is_changed=''
        return
    fi
    if [[ -e $new ]]; then verb=replaced; fi
    mkdir -p "$(dirname "$new")"
    pending=$(mktemp "$(dirname "$new")/.install.XXXXXX")
    cat "$1" >"$pending"
    owned "${pending#"$root"}" "$3" "$4"
    sync "$pending"
    mv -fT "$pending" "$new"
    pending=''
    is_changed=1
    did "$verb $2"
}

make_user() {
    if grep -q "^$SERVICE:" "$root/etc/passwd" 2>/dev/null; then return 0; fi
    if is_root && command -v systemd-sysusers >/dev/null; then
        SYSTEMD_LOG_LEVEL=warning systemd-sysusers ${is_rooted:+--root="$root"} "$(basename "$SYSUSERS")"
        did "made the user $SERVICE"
    else
        note "no user $SERVICE, its files are $(id -un)'s: systemd-sysusers and systemd-tmpfiles put that right"
    fi
}

install_all() {
    local role file kind path mode own is_new_binary is_new_unit=''
    local -A is_new=()
    put "$binary" "$BINARY" 0755 root
    is_new_binary=$is_changed
    for role in "${ROLES[@]}"; do
        file=sextant-$role@.service
        put "$here/systemd/$file" "$UNITS/$file" 0644 root
        if [[ $is_changed ]]; then is_new_unit=1 is_new[$role]=1; fi
    done
    put "$here/systemd/sextant.sysusers.conf" "$SYSUSERS" 0644 root
    put "$here/systemd/sextant.tmpfiles.conf" "$TMPFILES" 0644 root
    make_user
    find_group
    while read -r kind path mode _ own _; do
        if [[ $kind == d ]]; then directory "$path" "$mode" "$own"; fi
    done <"$here/systemd/sextant.tmpfiles.conf"
    for file in "${config_files[@]}"; do
        put "$config/$file" "$CONFIG/$file" 0640 "$SERVICE"
        is_new[${file%.toml}]=$is_changed
    done
    for file in "${tls_files[@]}"; do
        case $file in
            *.key) mode=0640 ;;
            *) mode=0644 ;;
        esac
        put "$tls/$file" "$TLS/$file" "$mode" "$SERVICE"
    done
    if [[ $is_rooted ]]; then return 0; fi
    if [[ $is_new_unit ]]; then systemctl daemon-reload; fi
    local server unit
    for server in "${servers[@]}"; do
        unit=$(unit_of "$server")
        if [[ $is_new_binary || ${is_new[cluster]-} || ${is_new[$server]-} || ${is_new[${server%-*}]-} ]] &&
            systemctl is-active --quiet "$unit"; then
            note "$server runs with what was there before: systemctl restart $unit, one server at a time"
        fi
    done
}

failed=0
enable_all() {
    local server unit why
    for server in "${enable[@]}"; do
        unit=$(unit_of "$server")
        if [[ $is_rooted ]]; then
            if [[ ! -L $root$WANTS/$unit ]]; then
                mkdir -p "$root$WANTS"
                ln -s "$UNITS/$(template_of "$server")" "$root$WANTS/$unit"
                did "enabled $unit"
            fi
            continue
        fi
        if ! systemctl is-enabled --quiet "$unit" 2>/dev/null; then
            systemctl enable --quiet "$unit"
            did "enabled $unit"
        fi
        if systemctl is-active --quiet "$unit"; then continue; fi
        # It may have been given up.
        systemctl reset-failed "$unit" 2>/dev/null || true
        if systemctl start "$unit" 2>/dev/null; then
            did "started $unit"
        else
            why=$(journalctl -u "$unit" -n 50 -o cat 2>/dev/null | grep '^sextant: ' | tail -n 1) || true
            printf '%s: %s did not start: %s\n' "$NAME" "$unit" "${why:-journalctl -u $unit}" >&2
            failed=1
        fi
    done
}

uninstall_all() {
    local role unit path
    for path in "$root$WANTS"/sextant-*@*.service; do
        [[ -L $path ]] || continue
        unit=$(basename "$path")
        if [[ ! $is_rooted ]]; then systemctl disable --quiet "$unit"; else rm "$path"; fi
        did "disabled $unit"
    done
    if [[ ! $is_rooted ]]; then
        for role in "${ROLES[@]}"; do
            while read -r unit _; do
                systemctl stop "$unit"
                did "stopped $unit"
            done < <(systemctl list-units --plain --no-legend --state=active,activating "sextant-$role@*.service")
            systemctl reset-failed "sextant-$role@*.service" 2>/dev/null || true
        done
    fi
    for role in "${ROLES[@]}"; do take_away "$UNITS/sextant-$role@.service"; done
    take_away "$SYSUSERS"
    take_away "$TMPFILES"
    take_away "$BINARY"
    if [[ ! $is_rooted ]] && ((changes)); then systemctl daemon-reload; fi
    for path in "$CONFIG" "$DATA"; do
        if [[ -d $root$path ]]; then note "left $path/"; fi
    done
    for path in "$root$UNITS"/sextant-*.service.d; do
        if [[ -d $path ]]; then note "left ${path#"$root"}/"; fi
    done
    if grep -q "^$SERVICE:" "$root/etc/passwd" 2>/dev/null; then note "left the user $SERVICE"; fi
}

take_away() {
    if [[ -e $root$1 ]]; then
        rm -f "$root$1"
        did "removed $1"
    fi
}

summary() {
    case $changes in
        0) printf 'nothing has changed\n' ;;
        1) printf '1 change\n' ;;
        *) printf '%d changes\n' "$changes" ;;
    esac
}

work='' pending=''
# shellcheck disable=SC2317
cleanup() {
    if [[ $work ]]; then rm -rf "$work"; fi
    if [[ $pending ]]; then rm -f "$pending"; fi
}
trap cleanup EXIT

parse "$@"
check_machine
if [[ $uninstall ]]; then
    [[ -z $binary$config$tls$force${enable[*]} ]] || refuse "--uninstall goes with --root only"
    uninstall_all
    summary
    exit 0
fi
work=$(mktemp -d)
check_binary
plan_config
check_config
plan_tls
install_all
enable_all
summary
exit "$failed"
