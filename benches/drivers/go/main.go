// A peer of the benchmark program in Go: the timers of its standard library. It speaks the lines of
// foreign/wire.rs on its standard input and output.
//
// Arguments: a workload (or what to check), and the number of keys.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

func main() {
	switch os.Args[1] {
	case "check-keys":
		serveCalls(checkKeys())
	case "check-handles":
		serveCalls(checkHandles())
	default:
		keys, err := strconv.ParseUint(os.Args[2], 10, 64)
		check(err == nil, "%v", err)
		serve(os.Args[1], keys)
	}
}

var out sync.Mutex

func say(message any) {
	line, err := json.Marshal(message)
	check(err == nil, "%v", err)
	out.Lock()
	defer out.Unlock()
	_, err = os.Stdout.Write(append(line, '\n'))
	check(err == nil, "%v", err)
}

// lines calls each with every line of the input, until that ends.
func lines[T any](each func(T)) {
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		var message T
		err := json.Unmarshal(input.Bytes(), &message)
		check(err == nil, "%v: %s", err, input.Bytes())
		each(message)
	}
}

type request struct {
	Case   int    `json:"case"`
	Amount uint64 `json:"amount"`
	Seed   uint64 `json:"seed"`
}

type filledReply struct {
	Seconds float64 `json:"seconds"`
	Bytes   *uint64 `json:"bytes"`
}

type reply struct {
	Figures []*float64 `json:"figures"`
	Seconds float64    `json:"seconds"`
	Fired   uint64     `json:"fired"`
}

// serve does rounds of a workload until the input ends.
func serve(name string, keys uint64) {
	w := open(name, keys)
	before := residentBytes()
	began := time.Now()
	w.fill()
	filled := filledReply{Seconds: time.Since(began).Seconds()}
	if after := residentBytes(); before != nil && after != nil && *after >= *before {
		bytes := uint64(*after - *before)
		filled.Bytes = &bytes
	}
	say(filled)
	lines(func(r request) {
		firedBefore := firedSoFar()
		found, took := w.round(r.Case, r.Amount, r.Seed)
		say(reply{Figures: found, Seconds: took.Seconds(), Fired: firedSoFar() - firedBefore})
	})
}

// Single calls, for the tests of the benchmark program. Each lane has a goroutine of its own.

type call struct {
	Lane    int    `json:"lane"`
	Do      string `json:"do"`
	Key     uint64 `json:"key"`
	DelayNs int64  `json:"delay_ns"`
}

type answer struct {
	Lane   int    `json:"lane"`
	Answer uint64 `json:"answer"`
}

type firing struct {
	Fired uint64 `json:"fired"`
	AtNs  int64  `json:"at_ns"`
}

func serveCalls(subject func(call) uint64) {
	listener = func(value uint64) { say(firing{value, monotonic()}) }
	waiting := make(map[int]chan call)
	lines(func(c call) {
		if waiting[c.Lane] == nil {
			calls := make(chan call, 1)
			waiting[c.Lane] = calls
			go func() {
				for c := range calls {
					say(answer{c.Lane, subject(c)})
				}
			}()
		}
		waiting[c.Lane] <- c
	})
}

func number(yes bool) uint64 {
	if yes {
		return 1
	}
	return 0
}

func checkKeys() func(call) uint64 {
	k := newKeyed()
	return func(c call) uint64 {
		delay := time.Duration(c.DelayNs)
		switch c.Do {
		case "start":
			k.start(c.Key, delay)
			return 0
		case "stop":
			return number(k.stop(c.Key))
		case "touch":
			return number(k.touch(c.Key, delay))
		case "pending":
			return uint64(k.pending())
		case "settle":
			return 0
		}
		panic(fmt.Sprintf("what is %q?", c.Do))
	}
}

// checkHandles answers a start with a number that stands for the handle.
func checkHandles() func(call) uint64 {
	h := &handles{}
	var mutex sync.Mutex
	var timers []*time.Timer
	return func(c call) uint64 {
		mutex.Lock()
		defer mutex.Unlock()
		switch c.Do {
		case "start":
			timers = append(timers, h.startCounted(c.Key, time.Duration(c.DelayNs)))
			return uint64(len(timers) - 1)
		case "stop":
			return number(h.stopCounted(timers[c.Key]))
		case "pending":
			return uint64(h.count())
		case "settle":
			return 0
		}
		panic(fmt.Sprintf("what is %q?", c.Do))
	}
}
