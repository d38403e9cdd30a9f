#!/usr/bin/env bash
# Lays ONNX Runtime for C++ into DIRECTORY as its release archives are laid, include/ and lib/; installs nothing.
#     bash onnxruntime.sh DIRECTORY PYTHON
# The headers are those of Debian 13's libonnxruntime-dev, which any Debian with apt can fetch. Its library needs the C
# library of Debian 13; the one in the wheel that PYTHON imports runs everywhere, and serves older headers too.
set -euo pipefail
directory=$1 python=$2
wheel=$("$python" -c 'import onnxruntime, pathlib; print(pathlib.Path(onnxruntime.__file__).parent)')
library=$(ls "$wheel"/capi/libonnxruntime.so.*)
mkdir -p "$directory"/{include,lib,apt/sources.list.d,apt/state,apt/cache}
cd "$directory"

. /etc/os-release
for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
    [[ ! -f $file ]] || sed "s/\b$VERSION_CODENAME\b/trixie/g" "$file" >"apt/sources.list.d/$(basename "$file")"
done
apt() {
    apt-get --quiet=2 -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$PWD/apt/sources.list.d" \
        -o Dir::State="$PWD/apt/state" -o Dir::Cache="$PWD/apt/cache" -o APT::Sandbox::User=root \
        -o Acquire::Languages=none "$@"
}
apt update
apt download libonnxruntime-dev
dpkg-deb --extract libonnxruntime-dev_*.deb apt/package
mv apt/package/usr/include/onnxruntime/* include

ln -s "$library" lib/libonnxruntime.so
ln -s "$library" lib/libonnxruntime.so.1 # the name that programs look for when they start
