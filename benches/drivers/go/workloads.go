package main

import (
	"math/bits"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The workloads: the counterparts of the files in src/workloads, which say what each of them is.

type workload struct {
	fill func()
	// round returns one figure for each metric of the workload, nil for one that the platform does not tell,
	// and the time that it took.
	round func(which int, amount uint64, seed uint64) ([]*float64, time.Duration)
}

const idle = 30 * time.Minute

func open(name string, keys uint64) workload {
	switch name {
	case "W1":
		return pairs(keys)
	case "W1k":
		return keyedPairs(keys, counted)
	case "W1x":
		return keyedPairs(keys, mixed)
	case "W2":
		return touches(keys)
	case "W3":
		return timeouts()
	case "W4":
		return mass(newKeyed().start, 2*time.Second, func(l *lateness, _ int64) []float64 {
			return []float64{l.perMille(500), l.perMille(990), l.max()}
		})
	case "W4i":
		return mass(newKeyed().start, 0, lastRan)
	case "W4h":
		h := &handles{}
		return mass(func(value uint64, delay time.Duration) { h.start(value, delay) }, 0, lastRan)
	case "W5":
		return longTasks()
	case "W6":
		return idleness(keys)
	case "W7":
		return memory(keys)
	case "W8":
		return inserts(keys, counted)
	case "W8x":
		return inserts(keys, mixed)
	case "W9":
		return cascade(keys)
	}
	panic("no workload is called " + name)
}

// rng is SplitMix64, as in rng.rs.
type rng uint64

func (r *rng) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	return mixed(uint64(*r))
}

// counted and mixed make the key of a number, as in rng.rs.
func counted(number uint64) uint64 { return number }

func mixed(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (r *rng) below(bound uint64) uint64 {
	high, _ := bits.Mul64(r.next(), bound)
	return high
}

func (r *rng) between(from, to time.Duration) time.Duration {
	return from + time.Duration(r.below(uint64(to-from)))
}

func figures(numbers ...float64) []*float64 {
	var all []*float64
	for at := range numbers {
		all = append(all, &numbers[at])
	}
	return all
}

func filled(k *keyed, keys uint64) {
	pending := k.pending()
	check(uint64(pending) == keys, "%d of %d timers are pending after the fill", pending, keys)
}

func fillBetween(k *keyed, keys uint64, keyOf func(uint64) uint64, from, to time.Duration) {
	r := rng(0xf111)
	for number := uint64(0); number < keys; number++ {
		k.start(keyOf(number), r.between(from, to))
	}
	filled(k, keys)
}

func fillIdle(k *keyed, keys uint64, delay time.Duration) {
	for key := uint64(0); key < keys; key++ {
		k.start(key, delay)
	}
	filled(k, keys)
}

// producers runs work on goroutines that begin together and get their number. Nothing is left to others here.
func producers(threads int, work func(number uint64)) time.Duration {
	var ready, done sync.WaitGroup
	ready.Add(threads)
	done.Add(threads)
	began := make([]time.Time, threads)
	ended := make([]time.Time, threads)
	for number := 0; number < threads; number++ {
		go func(number int) {
			defer done.Done()
			ready.Done()
			ready.Wait()
			began[number] = time.Now()
			work(uint64(number))
			ended[number] = time.Now()
		}(number)
	}
	done.Wait()
	first, last := began[0], ended[0]
	for number := range began {
		if began[number].Before(first) {
			first = began[number]
		}
		if ended[number].After(last) {
			last = ended[number]
		}
	}
	return last.Sub(first)
}

// startStop is W1, W1k and W1x. A pair says whether its timer was stopped before it fired.
func startStop(pair func(number uint64, delay time.Duration) bool, guard func(on bool)) func(int, uint64, uint64) ([]*float64, time.Duration) {
	return func(which int, amount uint64, seed uint64) ([]*float64, time.Duration) {
		from, to := time.Millisecond, time.Minute
		if which == 1 {
			from, to = time.Hour, 2*time.Hour
			guard(true)
		}
		r := rng(seed)
		firedBefore := firedSoFar()
		began := time.Now()
		stopped := uint64(0)
		for number := uint64(0); number < amount; number++ {
			if pair(number, r.between(from, to)) {
				stopped++
			}
		}
		took := time.Since(began)
		if which == 1 {
			guard(false)
		}
		// A timer of a millisecond can fire when the thread is held up in between.
		waitUntilFired(firedBefore+amount-stopped, time.Minute)
		return figures(float64(took) / float64(amount)), took
	}
}

func pairs(keys uint64) workload {
	h := &handles{}
	var guard *time.Timer
	pair := func(number uint64, delay time.Duration) bool { return h.start(number, delay).Stop() }
	return workload{
		fill: func() {
			r := rng(0xf111)
			for value := uint64(0); value < keys; value++ {
				h.start(value, r.between(time.Hour, 2*time.Hour))
			}
		},
		round: startStop(pair, func(on bool) {
			if on {
				guard = h.start(0, idle)
			} else {
				guard.Stop()
			}
		}),
	}
}

func keyedPairs(keys uint64, keyOf func(uint64) uint64) workload {
	k := newKeyed()
	pair := func(number uint64, delay time.Duration) bool {
		key := keyOf(keys + number)
		k.start(key, delay)
		return k.stop(key)
	}
	return workload{
		fill: func() { fillBetween(k, keys, keyOf, time.Hour, 2*time.Hour) },
		round: startStop(pair, func(on bool) {
			if on {
				k.start(^uint64(0), idle)
			} else {
				k.stop(^uint64(0))
			}
		}),
	}
}

func touches(keys uint64) workload {
	k := newKeyed()
	return workload{
		fill: func() { fillIdle(k, keys, idle) },
		round: func(which int, amount uint64, seed uint64) ([]*float64, time.Duration) {
			threads := which + 1
			each := amount / uint64(threads)
			touched := make([]uint64, threads)
			took := producers(threads, func(number uint64) {
				r := rng(seed ^ number<<32)
				count := uint64(0)
				for at := uint64(0); at < each; at++ {
					if k.touch(r.below(keys), idle) {
						count++
					}
				}
				touched[number] = count
			})
			for _, count := range touched {
				check(count == each, "every key is there")
			}
			return figures(float64(each) * float64(threads) * 1e3 / float64(took)), took
		},
	}
}

func timeouts() workload {
	const (
		timeout = 30 * time.Second
		window  = 1_000
		stride  = 128
	)
	before := residentBytes()
	k := newKeyed()
	return workload{
		fill: func() {},
		round: func(which int, amount uint64, _ uint64) ([]*float64, time.Duration) {
			threads := which + 1
			limit := time.Duration(amount) * time.Millisecond
			firedBefore := firedSoFar()
			started, stopped := make([]uint64, threads), make([]uint64, threads)
			took := producers(threads, func(number uint64) {
				first := number << 40
				next, count := first, uint64(0)
				for began := time.Now(); time.Since(began) < limit; {
					for at := 0; at < stride; at++ {
						k.start(next, timeout)
						if next-first >= window && k.stop(next-window) {
							count++
						}
						next++
					}
				}
				started[number], stopped[number] = next-first, count
			})
			var grown *float64
			if after := residentBytes(); before != nil && after != nil {
				grown = figures((*after - *before) / 1e6)[0]
			}
			operations, gone := uint64(0), uint64(0)
			for number := range started {
				operations += started[number]
				gone += started[number] - stopped[number] - window
			}
			waitUntilFired(firedBefore+gone, time.Minute)
			return append(figures(float64(operations)*1e3/float64(took)), grown), took
		},
	}
}

func lastRan(l *lateness, first int64) []float64 { return []float64{l.lastRanAfter(first)} }

func mass(start func(uint64, time.Duration), span time.Duration, figuresOf func(*lateness, int64) []float64) workload {
	stamped = true
	return workload{
		fill: func() {},
		round: func(_ int, amount uint64, seed uint64) ([]*float64, time.Duration) {
			lead := 200*time.Millisecond + 2*time.Microsecond*time.Duration(amount)
			for {
				firedBefore := firedSoFar()
				began := sinceBegin()
				first := began + int64(lead)
				arm(start, int(amount), seed, first, span)
				inTime := sinceBegin() < first
				cpu := cpuTime()
				waitUntilFired(firedBefore+amount, lead+span+2*time.Minute)
				cpu = cpuTime() - cpu
				if !inTime {
					takeLateness()
					lead *= 2
					continue
				}
				found := figuresOf(latenessOf(amount), first)
				return figures(append(found, cpu.Seconds())...), time.Duration(sinceBegin() - began)
			}
		},
	}
}

// arm spreads the timers evenly over the span, in random order.
func arm(start func(uint64, time.Duration), count int, seed uint64, first int64, span time.Duration) {
	places := make([]int32, count)
	for at := range places {
		places[at] = int32(at)
	}
	r := rng(seed)
	for left := count - 1; left >= 1; left-- {
		other := r.below(uint64(left) + 1)
		places[left], places[other] = places[other], places[left]
	}
	for _, number := range places {
		due := first + int64(float64(span)*float64(number)/float64(count))
		start(stamp(due, false, int(number)), time.Duration(due-sinceBegin()))
	}
}

// paced is a producer of 10,000 timers a second.
func paced(k *keyed, amount, long, seed uint64, from time.Duration) ([]*float64, time.Duration) {
	const perStep = 10
	total := amount * perStep
	gap := total
	if long > 0 {
		gap = total / long
	}
	firedBefore := firedSoFar()
	began := time.Now()
	r := rng(seed)
	planned := sinceBegin()
	for number := uint64(0); number < total; {
		if left := planned - sinceBegin(); left >= 0 {
			time.Sleep(time.Duration(left))
			if woke := sinceBegin(); woke > planned+int64(time.Millisecond) {
				planned = woke
			}
		}
		for at := 0; at < perStep; at++ {
			due := planned + int64(r.between(from, 60*time.Millisecond))
			key := stamp(due, long > 0 && number%gap == gap/2, int(number))
			k.start(key, time.Duration(due-sinceBegin()))
			number++
		}
		planned += int64(time.Millisecond)
	}
	waitUntilFired(firedBefore+total, time.Minute+time.Duration(long)*longTask)
	l := latenessOf(total - long)
	return figures(l.perMille(500), l.perMille(990), l.perMille(999), l.max()), time.Since(began)
}

func longTasks() workload {
	stamped = true
	k := newKeyed()
	return workload{
		fill: func() {},
		round: func(which int, amount uint64, seed uint64) ([]*float64, time.Duration) {
			// As many as in the five seconds of the full form, by the time; at least one.
			long := 41 * amount / 5_000
			if long == 0 {
				long = 1
			}
			// In the second case no task takes long.
			if which > 0 {
				long = 0
			}
			return paced(k, amount, long, seed, 10*time.Millisecond)
		},
	}
}

func cascade(keys uint64) workload {
	const (
		ahead = 60 * time.Second
		slot  = 64 * 64 * 64 * time.Millisecond
	)
	stamped = true
	k := newKeyed()
	var first int64
	return workload{
		fill: func() {
			first = sinceBegin() + int64(ahead)
			r := rng(0xf111)
			for key := uint64(0); key < keys; key++ {
				k.start(key, time.Duration(first+int64(r.below(uint64(slot)))-sinceBegin()))
			}
			filled(k, keys)
		},
		round: func(_ int, amount uint64, seed uint64) ([]*float64, time.Duration) {
			found, took := paced(k, amount, 0, seed, time.Millisecond)
			check(sinceBegin() < first, "the round has to end before the others come due")
			return found, took
		},
	}
}

func idleness(keys uint64) workload {
	const tasks = 1_000
	k := newKeyed()
	rested := false
	return workload{
		fill: func() { fillIdle(k, keys, time.Hour) },
		round: func(_ int, amount uint64, _ uint64) ([]*float64, time.Duration) {
			span := time.Duration(amount) * time.Millisecond
			if !rested {
				before := firedSoFar()
				for task := uint64(0); task < tasks; task++ {
					k.start(keys+task, time.Millisecond)
				}
				waitUntilFired(before+tasks, time.Minute)
				if span >= time.Second {
					time.Sleep(12 * time.Second)
				}
			}
			rested = true
			cpu, switches := cpuTime(), switches()
			began := time.Now()
			time.Sleep(span)
			took := time.Since(began)
			cpu = cpuTime() - cpu
			return figures(cpu.Seconds()*1e3, switchesSince(switches)), took
		},
	}
}

func memory(keys uint64) workload {
	k := newKeyed()
	var took time.Duration
	var each *float64
	return workload{
		fill: func() {
			runtime.GC()
			before := residentBytes()
			began := time.Now()
			fillBetween(k, keys, counted, time.Hour, 2*time.Hour)
			took = time.Since(began)
			runtime.GC()
			if after := residentBytes(); before != nil && after != nil {
				each = figures((*after - *before) / float64(keys))[0]
			}
		},
		round: func(int, uint64, uint64) ([]*float64, time.Duration) {
			return []*float64{each}, took
		},
	}
}

func inserts(keys uint64, keyOf func(uint64) uint64) workload {
	k := newKeyed()
	return workload{
		fill: func() {},
		round: func(which int, _ uint64, seed uint64) ([]*float64, time.Duration) {
			threads := which + 1
			each := keys / uint64(threads)
			longest := make([]time.Duration, threads)
			took := producers(threads, func(number uint64) {
				r := rng(seed ^ number<<32)
				before := time.Now()
				for key := number * each; key < (number+1)*each; key++ {
					k.start(keyOf(key), r.between(time.Hour, 2*time.Hour))
					after := time.Now()
					if call := after.Sub(before); call > longest[number] {
						longest[number] = call
					}
					before = after
				}
			})
			filled(k, each*uint64(threads))
			most := time.Duration(0)
			for _, call := range longest {
				if call > most {
					most = call
				}
			}
			return figures(took.Seconds(), most.Seconds()*1e3), took
		},
	}
}

// residentBytes is nil where the platform does not say. Pages of 4 KiB.
func residentBytes() *float64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return nil
	}
	pages, err := strconv.ParseFloat(strings.Fields(string(text))[1], 64)
	if err != nil {
		return nil
	}
	return figures(pages * 4096)[0]
}

// cpuTime is that of all threads. A goroutine that only waits hardly uses any.
func cpuTime() time.Duration {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used) == nil, "no CPU time")
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// switches are the voluntary context switches of all threads.
func switches() int64 {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used) == nil, "no context switches")
	return used.Nvcsw
}

// switchesSince leaves out the waiting goroutine, whose thread goes to sleep once.
func switchesSince(before int64) float64 {
	since := switches() - before - 1
	if since < 0 {
		since = 0
	}
	return float64(since)
}
