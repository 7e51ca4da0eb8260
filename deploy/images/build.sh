#!/usr/bin/env bash
# Builds the images retroinfer/kv-store, retroinfer/gpu-worker, retroinfer/http-gateway,
# retroinfer/retroinfer and retroinfer/demo-model.
#
#   deploy/images/build.sh                     compile this source on Debian's images
#   deploy/images/build.sh --cuda              the same on NVIDIA's, with the CUDA backend
#   deploy/images/build.sh --debian-base       make the base from Debian packages with mmdebstrap, where
#                                              there is no image registry
#   deploy/images/build.sh --build FOLDER      take the programs of this build folder (build/release)
#                                              instead of compiling; its system must be the base's release
# Other options:
#   --target NAME     only this image; may be repeated
#   --tag TAG         default: the commit
#   --prefix NAME     of the images' names; default: retroinfer
#   --engine NAME     buildah or docker; default: what there is
#   --format NAME     of buildah: docker (with a health command; the default) or oci
#   --sbom FOLDER     write IMAGE.packages.tsv there: what is in the image; default: build/images
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)

engine='' build_folder='' targets=() tag='' sbom=$root/build/images cuda=OFF debian_base=no prefix=retroinfer
format=docker
while [ $# -gt 0 ]; do
  case $1 in
    --cuda) cuda=ON ;;
    --debian-base) debian_base=yes ;;
    --build | --target | --tag | --engine | --format | --sbom | --prefix)
      [ $# -ge 2 ] || { echo "build.sh: $1 needs a value" >&2; exit 2; }
      case $1 in
        --build) build_folder=$(realpath "$2") ;;
        --target) targets+=("$2") ;;
        --tag) tag=$2 ;;
        --engine) engine=$2 ;;
        --format) format=$2 ;;
        --sbom) sbom=$2 ;;
        --prefix) prefix=$2 ;;
      esac
      shift
      ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "build.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done
[ ${#targets[@]} -gt 0 ] || targets=(kv-store gpu-worker http-gateway retroinfer demo-model)
if [ -z "$engine" ]; then
  for engine in buildah docker none; do command -v "$engine" >/dev/null && break; done
fi
case $engine in
  buildah | docker) ;;
  *) echo "build.sh: needs buildah or docker (--engine is '$engine')" >&2; exit 1 ;;
esac
revision=$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
version=$(sed -n 's/^project(.* VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
tag=${tag:-$revision}

arguments=(--build-arg "CUDA=$cuda" --build-arg "REVISION=$revision" --build-arg "VERSION=$version")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "$debian_base" = yes ]; then
  [ "$engine" = buildah ] || { echo "build.sh: --debian-base needs --engine buildah" >&2; exit 1; }
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
  base=localhost/retroinfer-base:$release
  if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
    echo "build.sh: making $base with mmdebstrap"
    # As small as Debian's slim image: no manuals, no translations.
    mmdebstrap --quiet --variant=minbase --dpkgopt='path-exclude=/usr/share/man/*' \
      --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
      --dpkgopt='path-include=/usr/share/doc/*/copyright' "$release" "$work/base.tar"
    container=$(buildah from scratch)
    buildah add -q "$container" "$work/base.tar" / >/dev/null
    buildah commit -q --rm "$container" "$base" >/dev/null
    rm "$work/base.tar"
  fi
  arguments+=(--build-arg "BUILD_BASE=$base" --build-arg "RUN_BASE=$base")
elif [ "$cuda" = ON ]; then
  arguments+=(--build-arg BUILD_BASE=docker.io/nvidia/cuda:13.0.1-devel-ubuntu24.04
    --build-arg RUN_BASE=docker.io/nvidia/cuda:13.0.1-runtime-ubuntu24.04)
fi
context=$root
if [ -n "$build_folder" ]; then
  context=$work/context
  mkdir -p "$context/deploy" "$context/scripts" "$context/models"
  for component in worker store gateway client license; do
    DESTDIR=$work/tree cmake --install "$build_folder" --prefix /usr --strip --component "$component" >/dev/null
  done
  cp -a "$root/models/needle" "$context/models/"
  cp -a "$root/deploy/images" "$context/deploy/"
  cp "$root/scripts/bootstrap.sh" "$context/scripts/"
  "$root/deploy/images/make_programs.sh" "$work/tree" "$context/prebuilt"
  arguments+=(--build-arg PREBUILT=prebuilt)
fi

build() {  # image, target
  if [ "$engine" = docker ]; then
    docker buildx build --load "${arguments[@]}" -f "$context/deploy/images/Containerfile" \
      --target "$2" -t "$1" "$context"
  else
    # chroot: works where namespaces are not to be had. Layers: `build` is made once for all targets.
    buildah bud -q --isolation chroot --network host --format "$format" --layers "${arguments[@]}" \
      -f "$context/deploy/images/Containerfile" --target "$2" -t "$1" "$context" >/dev/null
  fi
}
copy_out() {  # image, path in it, file here
  if [ "$engine" = docker ]; then
    local container
    container=$(docker create "$1")
    docker cp -q "$container:$2" "$3"
    docker rm "$container" >/dev/null
  else
    local container
    container=$(buildah from --pull-never "$1")
    cp "$(buildah mount "$container")$2" "$3"
    buildah rm "$container" >/dev/null
  fi
}

mkdir -p "$sbom"
for target in "${targets[@]}"; do
  case $target in
    kv-store | gpu-worker | http-gateway | retroinfer | demo-model) ;;
    *) echo "build.sh: there is no target '$target'" >&2; exit 2 ;;
  esac
  image=$prefix/$target:$tag
  [ "$engine" = docker ] || image=localhost/$image
  build "$image" "$target"
  [ "$target" = demo-model ] && { echo "built $image"; continue; }
  copy_out "$image" /usr/share/retroinfer/packages.tsv "$sbom/$target.packages.tsv"
  echo "built $image ($(($(wc -l <"$sbom/$target.packages.tsv") - 1)) packages, listed in" \
    "$sbom/$target.packages.tsv)"
done
