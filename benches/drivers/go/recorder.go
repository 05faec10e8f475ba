package main

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"
)

// What fired, and how late: the counterpart of recorder.rs, with the same stamps and the same buckets. Every
// function runs on a goroutine of its own, so the counters are atomic, in lanes by the number of the timer.

const (
	longTask   = 500 * time.Millisecond
	perOctave  = 32
	buckets    = 34 * perOctave
	numberBits = 24
	lanes      = 16
)

type lane struct {
	fired    uint64
	sum      uint64
	latest   int64
	lastRan  int64
	earliest int64
	lateness [buckets]uint64
	_        [128]byte
}

var (
	// Stamps count microseconds from here.
	begin    = time.Now()
	stamped  bool
	listener func(value uint64)
	record   [lanes]lane
)

// sinceBegin is a reading of the monotonic clock.
func sinceBegin() int64 { return int64(time.Since(begin)) }

// stamp is the eight bytes of a timer: when it is due, rounded down, whether its task is long, a number.
func stamp(due int64, long bool, number int) uint64 {
	value := uint64(due/1_000)<<(numberBits+1) | uint64(number)
	if long {
		value |= 1 << numberBits
	}
	return value
}

// fired is what every timer that fires calls.
func fired(value uint64) {
	if listener != nil {
		listener(value)
		return
	}
	l := &record[value%lanes]
	if stamped {
		l.stamped(value)
	}
	atomic.AddUint64(&l.sum, value)
	// Last: who sees the count sees what was recorded before it.
	atomic.AddUint64(&l.fired, 1)
}

func (l *lane) stamped(value uint64) {
	now := sinceBegin()
	late := now - int64(value>>(numberBits+1))*1_000
	if late < 0 {
		raise(&l.earliest, -late)
	}
	if value>>numberBits&1 != 0 {
		time.Sleep(longTask)
		return
	}
	if late < 0 {
		late = 0
	}
	atomic.AddUint64(&l.lateness[bucket(uint64(late))], 1)
	raise(&l.latest, late)
	raise(&l.lastRan, now)
}

func raise(to *int64, number int64) {
	for {
		old := atomic.LoadInt64(to)
		if number <= old || atomic.CompareAndSwapInt64(to, old, number) {
			return
		}
	}
}

func bucket(nanos uint64) int {
	if nanos < 2*perOctave {
		return int(nanos)
	}
	shift := bits.Len64(nanos) - 6
	at := shift*perOctave + int(nanos>>shift)
	if at >= buckets {
		return buckets - 1
	}
	return at
}

func upperEnd(bucket int) int64 {
	if bucket < 2*perOctave {
		return int64(bucket)
	}
	shift := bucket/perOctave - 1
	return (int64(bucket-shift*perOctave+1) << shift) - 1
}

func firedSoFar() uint64 {
	sum := uint64(0)
	for at := range record {
		sum += atomic.LoadUint64(&record[at].fired)
	}
	return sum
}

// waitUntilFired waits until count timers have fired in all. Those that don't come are an error.
func waitUntilFired(count uint64, limit time.Duration) {
	began := time.Now()
	for firedSoFar() < count {
		check(time.Since(began) < limit, "only %d of %d timers have fired", firedSoFar(), count)
		time.Sleep(time.Millisecond)
	}
}

// lateness is how late those were that fired since the last call of takeLateness.
type lateness struct {
	counts                    [buckets]uint64
	count                     uint64
	latest, lastRan, earliest int64
}

// takeLateness is for the time between two rounds, when nothing fires.
func takeLateness() *lateness {
	taken := &lateness{}
	for at := range record {
		l := &record[at]
		for at := range l.lateness {
			count := atomic.SwapUint64(&l.lateness[at], 0)
			taken.counts[at] += count
			taken.count += count
		}
		raise(&taken.latest, atomic.SwapInt64(&l.latest, 0))
		raise(&taken.lastRan, atomic.SwapInt64(&l.lastRan, 0))
		raise(&taken.earliest, atomic.SwapInt64(&l.earliest, 0))
	}
	return taken
}

func latenessOf(count uint64) *lateness {
	taken := takeLateness()
	check(taken.count == count, "%d of %d timers fired", taken.count, count)
	check(taken.earliest == 0, "a timer ran %d ns early", taken.earliest)
	return taken
}

// perMille is in milliseconds; so many per mille were at most so late.
func (l *lateness) perMille(perMille uint64) float64 {
	rank := (l.count*perMille + 999) / 1_000
	if rank == 0 {
		rank = 1
	}
	seen := uint64(0)
	for at, count := range l.counts {
		seen += count
		if seen >= rank {
			end := upperEnd(at)
			if end > l.latest {
				end = l.latest
			}
			return float64(end) / 1e6
		}
	}
	return 0
}

func (l *lateness) max() float64 { return float64(l.latest) / 1e6 }

// lastRanAfter says how long after this moment the last one ran, in milliseconds.
func (l *lateness) lastRanAfter(moment int64) float64 {
	if l.lastRan < moment {
		return 0
	}
	return float64(l.lastRan-moment) / 1e6
}

func check(holds bool, format string, args ...any) {
	if !holds {
		panic(fmt.Sprintf(format, args...))
	}
}
