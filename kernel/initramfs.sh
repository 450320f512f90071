# shellcheck shell=bash
# Functions of scripts that build a program and pack it as the /init of an initramfs. They source this file.

# read_profile NAME ARGUMENT...: sets $profile from the arguments of the script NAME, which has `usage`.
read_profile() {
    local name=$1
    shift
    profile=release
    case ${1-} in
        "") ;;
        --profile) profile=${2:?--profile needs a value (see --help)} ;;
        --help | -h) usage && exit 0 ;;
        *) echo "$name: unknown argument $1 (see --help)" >&2 && exit 1 ;;
    esac
}

# newc_entry NAME MODE MAJOR MINOR: writes an entry of a newc archive, without inode and content. cpio would
# have to read a device node, which only root can make.
newc_entry() {
    local name=$1 mode=$2 major=$3 minor=$4 length
    length=$((${#name} + 1))
    printf '070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s' \
        0 "$mode" 0 0 1 0 0 0 0 "$major" "$minor" "$length" 0 "$name"
    # The name's zero byte, and padding of the header, 110 bytes, and the name to a multiple of 4.
    head -c "$((1 + (4 - (110 + length) % 4) % 4))" /dev/zero
}

# build_initramfs NAME PACKAGE BINARY FILE: builds the binary with $profile, packs it into FILE of the
# target directory's `guest`, and prints the path. NAME is that of the script.
build_initramfs() {
    local name=$1 package=$2 binary=$3 file=$4 program repository target built
    for program in cargo cpio; do
        command -v "$program" >/dev/null && continue
        echo "$name: $program is missing (scripts/install-deps.sh installs it)" >&2
        exit 1
    done

    repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    mkdir -p "${CARGO_TARGET_DIR:-$repository/target}"
    target=$(cd "${CARGO_TARGET_DIR:-$repository/target}" && pwd)
    # A directory of its own: in the other one, cargo's lock makes this wait minutes for a build of volt-vmm.
    built=$target/guest/cargo
    (cd "$repository" && CARGO_TARGET_DIR=$built \
        cargo build --quiet --profile "$profile" --locked --package "$package" --bin "$binary") >&2

    mkdir -p "$target/guest"
    staging=$(mktemp -d "$target/guest/.staging.XXXXXX")
    trap 'rm -rf "$staging"' EXIT
    mkdir -p "$staging"/root/{dev,proc,sys,tmp,run}
    # Names of functions are half of the agent, and no guest reads them.
    install -s -m 755 "$built/x86_64-unknown-linux-musl/$profile/$binary" "$staging/root/init"

    # Fixed times and owners and sorted names make the archive reproducible.
    find "$staging/root" -exec touch -h -d @0 {} +
    (cd "$staging/root" && find . -mindepth 1 -printf '%P\n' | LC_ALL=C sort |
        cpio --quiet --reproducible --owner=0:0 -o -H newc) >"$staging/files"

    # The kernel opens /dev/console before it starts /init, which falls back to /dev/null. cpio's trailer ends
    # these entries too.
    {
        newc_entry dev $((0040755)) 0 0
        newc_entry dev/console $((0020600)) 5 1
        newc_entry dev/null $((0020666)) 1 3
        cat "$staging/files"
    } >"$staging/$file"
    mv "$staging/$file" "$target/guest/$file"
    echo "$target/guest/$file"
}
