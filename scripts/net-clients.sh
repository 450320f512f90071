#!/usr/bin/env bash
# Makes an image with clients of networks, and the site that they get files from. See --help.
set -euo pipefail
export LC_ALL=C

usage() {
    cat <<'END'
Usage: scripts/net-clients.sh DIR

Writes DIR/image.tar, an image with curl, apt, pip, git and node (net-clients:1), and DIR/site.tar: static
files for a server of all five. Downloads Debian packages (80 MB).
END
}

case ${1-} in
    --help | -h) usage && exit 0 ;;
esac
[ $# -eq 1 ] || { usage >&2 && exit 2; }
here=$(dirname "${BASH_SOURCE[0]}")
mkdir -p "$1"
directory=$(cd "$1" && pwd)
# The user's own configuration of git stays out.
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
site=$work/site
mkdir -p "$site"

"$here/image.sh" net-clients:1 "$directory/image.tar" \
    dash coreutils sed grep curl git apt dpkg python3 python3-pip nodejs ca-certificates

echo 'a file of the site' >"$site/file"

# A repository for git's protocol that asks for files alone.
demo=$work/demo
git init --quiet --initial-branch main "$demo"
echo 'a file of the repository' >"$demo/file"
git -C "$demo" add file
git -C "$demo" -c user.name=demo -c user.email=demo@example.org commit --quiet --message 'add a file'
git clone --quiet --bare "$demo" "$site/demo.git"
git -C "$site/demo.git" update-server-info

# A repository for apt with one package.
package=$work/package
mkdir -p "$package/DEBIAN" "$package/usr/share/volt-demo" "$site/debian"
echo 'a file of the package' >"$package/usr/share/volt-demo/file"
cat >"$package/DEBIAN/control" <<'END'
Package: volt-demo
Version: 1
Architecture: all
Maintainer: demo <demo@example.org>
Description: a file
END
dpkg-deb --root-owner-group --build "$package" "$site/debian/volt-demo.deb" >/dev/null
{
    dpkg-deb --field "$site/debian/volt-demo.deb"
    echo 'Filename: ./volt-demo.deb'
    echo "Size: $(stat -c %s "$site/debian/volt-demo.deb")"
    echo "SHA256: $(sha256sum "$site/debian/volt-demo.deb" | cut -d ' ' -f 1)"
} >"$site/debian/Packages"

# An index for pip with one project.
mkdir -p "$site/simple/volt-demo"
python3 -I - "$site/simple/volt-demo" <<'END'
import sys, zipfile

directory, name, info = sys.argv[1], "volt_demo-1-py3-none-any.whl", "volt_demo-1.dist-info/"
with zipfile.ZipFile(f"{directory}/{name}", "w") as wheel:
    wheel.writestr("volt_demo.py", 'TEXT = "a module of the project"\n')
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: volt-demo\nVersion: 1\n")
    fields = ["Wheel-Version: 1.0", "Generator: demo", "Root-Is-Purelib: true", "Tag: py3-none-any", ""]
    wheel.writestr(info + "WHEEL", "\n".join(fields))
    wheel.writestr(info + "RECORD", "")
with open(f"{directory}/index.html", "w") as index:
    index.write(f'<a href="{name}">{name}</a>')
END

tar --sort=name --owner=0 --group=0 --numeric-owner -C "$site" -cf "$directory/site.tar" .
