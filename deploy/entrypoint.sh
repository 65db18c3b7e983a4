#!/bin/sh
# The image's entry point: flags, a hub name and commands of mrp-serve are for mrp-serve. Any other command runs as it is,
# such as the `bash` of `ray up`.
#
#   docker run IMAGE --model X     docker run IMAGE serve X     docker run IMAGE owner/name     docker run -it IMAGE bash
set -eu
case "${1-}" in
  "" | -* | [!./]*/*) set -- mrp-serve serve "$@" ;;
  serve | generate | batch | check | key | calibrate | frontier | quality | train-mrp) set -- mrp-serve "$@" ;;
esac
exec "$@"
