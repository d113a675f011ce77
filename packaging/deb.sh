#!/usr/bin/env bash
# Builds out/goiser_VERSION_ARCH.deb: static programs, unit, man pages, completion, configuration. Needs Go, git, and the
# module proxy for nfpm, which stands in no go.mod of ours. The same commit makes the same package.
set -euo pipefail
cd "$(dirname "$0")/.."
export ARCH=${ARCH:-$(go env GOARCH)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
VERSION=${VERSION:-0.1.0~git$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M).$(git rev-parse --short=8 HEAD)}
export VERSION
STAGE=$(mktemp -d)
export STAGE
trap 'rm -rf "$STAGE"' EXIT
NFPM=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2

build() { CGO_ENABLED=0 GOARCH=$2 go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o "$3" "./cmd/$1"; }
put() { install -D -m "$1" /dev/stdin "$STAGE/$2"; }
page() { gzip -9n | put 644 "usr/share/man/man${1##*.}/$1.gz"; }

build iserd "$ARCH" "$STAGE/usr/sbin/iserd"
build iser "$ARCH" "$STAGE/usr/bin/iser"
put 644 lib/systemd/system/iserd.service <packaging/iserd.service

# The programs of this machine's kind tell their manual and completion.
tools=$(mktemp -d)
trap 'rm -rf "$STAGE" "$tools"' EXIT
for c in iser iserd; do build $c "$(go env GOHOSTARCH)" "$tools/$c"; done
"$tools/iserd" manual | page iserd.8
"$tools/iser" manual | page iser.1
"$tools/iser" manual --list | while read -r command; do
	# shellcheck disable=SC2086 # a command can be of two words
	"$tools/iser" manual $command | page "iser-${command// /-}.1"
done
packaging/yamlpage.sh docs/iserd.yaml "$VERSION" | page iserd.yaml.5
for c in iser iserd; do
	"$tools/$c" completion bash | put 644 "usr/share/bash-completion/completions/$c"
	"$tools/$c" completion zsh | put 644 "usr/share/zsh/vendor-completions/_$c"
	"$tools/$c" completion fish | put 644 "usr/share/fish/vendor_completions.d/$c.fish"
done

doc=usr/share/doc/goiser
put 644 $doc/copyright <packaging/debian/copyright
put 644 $doc/iserd.yaml <docs/iserd.yaml
for f in docs/*.md; do
	[[ $f == */INSTALL.md ]] || gzip -9n <"$f" | put 644 "$doc/$(basename "$f").gz"
done
packaging/licenses.sh | gzip -9n | put 644 $doc/third-party-licenses.gz
printf 'goiser (%s) unstable; urgency=medium\n\n  * Commit %s.\n\n -- The goiser authors <goiser@users.noreply.github.com>  %s\n' \
	"$VERSION" "$(git rev-parse HEAD)" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n | put 644 $doc/changelog.gz
put 644 usr/share/goiser/iserd.schema.json <packaging/iserd.schema.json
put 644 usr/share/lintian/overrides/goiser <packaging/debian/lintian-overrides
find "$STAGE" -type d -exec chmod 755 {} +
find "$STAGE" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

mkdir -p out
go run $NFPM package --config packaging/nfpm.yaml --packager deb --target out/
