#!/bin/sh
# Prints the licenses and notices of all modules that are in our programs.
set -e
go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/iserd ./cmd/iser | sort -u |
	while read -r path version dir; do
		files=$(find "$dir" -maxdepth 1 \( -name 'LICEN[CS]E*' -o -name 'NOTICE*' \) | sort)
		[ -n "$files" ] || { echo "$path has no license" >&2 && exit 1; }
		printf '==== %s %s ====\n\n' "$path" "$version"
		echo "$files" | while read -r f; do cat "$f" && echo; done
	done
