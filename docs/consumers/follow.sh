#!/bin/sh
# Follows the events of enforcer, and goes on where it was: over restarts of the daemon and of itself.
#
#     follow.sh [SOCKET [CURSOR-FILE]]
#
# Needs curl. Prints each event as a line of JSON; `process` is where something else is done with it.
set -u

socket=${1:-/run/enforcer/observe.sock}
cursor_file=${2:-enforcer.cursor}
longest_wait=5

say() {
    printf 'follow.sh: %s\n' "$1" >&2
}

fail() {
    say "$1"
    exit 1
}

# $1 is the type, $2 the event. Later versions add types and keys: ignore those that you do not know.
process() {
    if [ "$1" = dev.enforcer.stream.gap ]; then
        say "$(printf '%s' "$2" | sed -n 's/.*"count":\([0-9]*\).*/\1/p') events are lost: they are no longer kept"
    fi
    printf '%s\n' "$2"
}

# The file has the old cursor or the new one, never half of one.
save() {
    printf '%s\n' "$1" >"$cursor_file.new" && mv -f "$cursor_file.new" "$cursor_file"
}

command -v curl >/dev/null || fail "it needs curl"
cursor=
if [ -e "$cursor_file" ]; then
    cursor=$(cat "$cursor_file") || exit 1
fi

folder=
client=
stopping=
pause=
trap 'rm -rf "$folder"' EXIT
# A shell runs this between two commands, so that an event that is being processed is processed to its end.
trap 'stopping=1; kill $client $pause 2>/dev/null' TERM INT HUP
folder=$(mktemp -d) || exit 1
mkfifo "$folder/answer" || exit 1

# Reads the answer: `cursor` moves behind each processed event. `status` is that of HTTP, `came` says that the stream lives.
read_answer() {
    status='' in_head=1 id='' type='' data='' body=''
    while [ -z "$stopping" ] && IFS= read -r line; do
        line=${line%"$return"}
        if [ -n "$in_head" ]; then
            if [ -z "$status" ]; then
                status=${line#* }
                status=${status%% *}
            fi
            [ -n "$line" ] || in_head=
            continue
        fi
        if [ "$status" != 200 ]; then
            body=$body$line
            continue
        fi
        case $line in
        'id: '*) id=${line#id: } ;;
        'event: '*) type=${line#event: } ;;
        'data: '*) data=${line#data: } ;;
        '')
            # What is cut off before its empty line comes again.
            if [ -n "$data" ]; then
                process "$type" "$data" || fail "the event behind $cursor cannot be processed"
            fi
            # An id without data is the place behind events that a filter left out.
            if [ -n "$id" ]; then
                cursor=$id
                save "$cursor" || fail "$cursor_file cannot be written"
            fi
            id='' type='' data='' came=1
            ;;
        esac
    done
    # What the server says of an error may have no line end.
    [ -z "$status" ] || [ "$status" = 200 ] || body=$body$line
}

return=$(printf '\r')
wait=1
while [ -z "$stopping" ]; do
    came=
    curl --silent --no-buffer --include --unix-socket "$socket" -H 'Accept: text/event-stream' \
        ${cursor:+-H "Last-Event-ID: $cursor"} http://enforcer/v1/events >"$folder/answer" &
    client=$!
    read_answer <"$folder/answer"
    kill "$client" 2>/dev/null
    wait "$client" 2>/dev/null
    client=
    [ -z "$stopping" ] || break
    case $status in
    410)
        say "$body"
        say "going on with the oldest event that is kept"
        cursor=
        continue
        ;;
    4??) fail "$body" ;;
    esac
    [ -z "$came" ] || wait=1
    say "no daemon answers, or it has ended the stream: next attempt in $wait s"
    sleep "$wait" &
    pause=$!
    wait "$pause" 2>/dev/null
    pause=
    wait=$((wait * 2 > longest_wait ? longest_wait : wait * 2))
done
