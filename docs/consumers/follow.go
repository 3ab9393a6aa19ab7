// Follows the events of enforcer, and goes on where it was: over restarts of the daemon and of itself.
//
//	go run follow.go [SOCKET [CURSOR-FILE]]
//
// Prints each event as a line of JSON; process is where something else is done with it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	firstWait   = 250 * time.Millisecond
	longestWait = 5 * time.Second
	// The daemon sends something every 15 seconds.
	silence = time.Minute
)

// process does what is to be done with an event. Types and keys are added: ignore those that you do not know.
func process(line string) error {
	var event struct {
		Type string
		Data json.RawMessage
	}
	if err := json.Unmarshal([]byte(line), &event); err != nil {
		return err
	}
	if event.Type == "dev.enforcer.stream.gap" {
		var gap struct{ Count uint64 }
		if err := json.Unmarshal(event.Data, &gap); err != nil {
			return err
		}
		log.Printf("%d events are lost: they are no longer kept", gap.Count)
	}
	_, err := fmt.Println(line)
	return err
}

// A refusal is an answer that is no stream.
type refusal struct {
	status int
	said   string
}

func (refused *refusal) Error() string {
	return fmt.Sprintf("HTTP status %d: %s", refused.status, refused.said)
}

// A failure to process an event, or to keep the cursor: to read on would lose it.
type fatal struct{ error }

type follower struct {
	client     http.Client
	cursor     string
	cursorFile string
}

func newFollower(socket, cursorFile string) (*follower, error) {
	cursor, err := os.ReadFile(cursorFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &follower{
		client:     http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}},
		cursor:     strings.TrimSpace(string(cursor)),
		cursorFile: cursorFile,
	}, nil
}

// save keeps the cursor: the file has the old one or the new one, never half of one, also after a power cut.
func (f *follower) save(cursor string) error {
	file, err := os.CreateTemp(filepath.Dir(f.cursorFile), filepath.Base(f.cursorFile)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = fmt.Fprintln(file, cursor)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), f.cursorFile)
}

// connection follows the stream until the daemon ends or the connection does, and says whether anything came.
func (f *follower) connection(ctx context.Context) (bool, error) {
	ctx, hangUp := context.WithCancel(ctx)
	defer hangUp()
	alarm := time.AfterFunc(silence, hangUp)
	defer alarm.Stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://enforcer/v1/events", nil)
	if err != nil {
		return false, fatal{err}
	}
	request.Header.Set("Accept", "text/event-stream")
	if f.cursor != "" {
		request.Header.Set("Last-Event-ID", f.cursor)
	}
	answer, err := f.client.Do(request)
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		said, err := io.ReadAll(answer.Body)
		if err != nil {
			return false, err
		}
		return false, &refusal{answer.StatusCode, string(said)}
	}
	came := false
	var cursor, event string
	for lines := bufio.NewReader(answer.Body); ; {
		// What is cut off before its empty line comes again.
		line, err := lines.ReadString('\n')
		if err != nil {
			return came, err
		}
		came = true
		alarm.Reset(silence)
		switch name, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ": "); name {
		case "id":
			cursor = value
		case "data":
			event = value
		case "":
			if err := f.block(cursor, event); err != nil {
				return came, fatal{err}
			}
			cursor, event = "", ""
			if ctx.Err() != nil {
				return came, ctx.Err()
			}
		}
	}
}

// block processes an event, and then keeps the cursor behind it. A cursor alone is the place behind events that a
// filter left out.
func (f *follower) block(cursor, event string) error {
	if event != "" {
		if err := process(event); err != nil {
			return err
		}
	}
	if cursor == "" {
		return nil
	}
	f.cursor = cursor
	return f.save(cursor)
}

func (f *follower) follow(ctx context.Context) error {
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		came, err := f.connection(ctx)
		if ctx.Err() != nil && !errors.As(err, new(fatal)) {
			return nil
		}
		var refused *refusal
		switch {
		case errors.As(err, new(fatal)):
			return err
		case errors.As(err, &refused) && refused.status == http.StatusGone:
			log.Printf("%s; going on with the oldest event that is kept", refused.said)
			f.cursor = ""
			continue
		case errors.As(err, &refused) && refused.status < http.StatusInternalServerError:
			return err
		}
		if came {
			wait = firstWait
		}
		log.Printf("%v: next attempt in %v", err, wait)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("follow.go: ")
	arguments := []string{"/run/enforcer/observe.sock", "enforcer.cursor"}
	copy(arguments, os.Args[1:])
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	f, err := newFollower(arguments[0], arguments[1])
	if err == nil {
		err = f.follow(ctx)
	}
	if err != nil {
		log.Fatal(err)
	}
}
