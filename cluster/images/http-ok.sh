#!/usr/bin/env bash
# http-ok.sh PORT PATH: exit 0 when this container answers 200 there (on its own address: Ray does not listen on
# loopback). A health check in pure bash: an interpreter of
# Python started every few seconds in every container would cost a small machine more than what it watches.
exec 3<>"/dev/tcp/$HOSTNAME/$1" || exit 1
printf 'GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n' "$2" >&3
read -r -t 3 _ status _ <&3 && [[ $status == 200 ]]
