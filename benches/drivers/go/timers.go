package main

import (
	"sync"
	"sync/atomic"
	"time"
)

// shards of the map of keys: many more than cores, so that two threads rarely meet.
const shards = 64

// keyed is what a service writes around time.AfterFunc: a map from keys to timers, in shards with a mutex
// each. Whoever takes an entry out of the map decides: a function that does not find its entry there was
// stopped or replaced.
type keyed struct {
	shards [shards]shard
}

type shard struct {
	mutex sync.Mutex
	armed map[uint64]*entry
	// On cache lines of its own.
	_ [112]byte
}

type entry struct {
	key   uint64
	timer *time.Timer
}

func newKeyed() *keyed {
	k := &keyed{}
	for at := range k.shards {
		k.shards[at].armed = make(map[uint64]*entry)
	}
	return k
}

func (k *keyed) shard(key uint64) *shard {
	// The high bits of a product, since keys may be numbers in a row.
	return &k.shards[key*0x9e3779b97f4a7c15>>58]
}

// arm is called with the shard's mutex held. The function waits for the mutex, so it sees the entry.
func (s *shard) arm(key uint64, delay time.Duration) {
	e := &entry{key: key}
	s.armed[key] = e
	e.timer = time.AfterFunc(delay, func() { s.fire(e) })
}

func (s *shard) fire(e *entry) {
	s.mutex.Lock()
	mine := s.armed[e.key] == e
	if mine {
		delete(s.armed, e.key)
	}
	s.mutex.Unlock()
	if mine {
		fired(e.key)
	}
}

// start arms the timer of key and replaces a pending one.
func (k *keyed) start(key uint64, delay time.Duration) {
	s := k.shard(key)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if old := s.armed[key]; old != nil {
		s.move(old, delay)
		return
	}
	s.arm(key, delay)
}

// move pushes the timer of an entry. If its function is under way already, that finds a new entry in the
// place of its own.
func (s *shard) move(e *entry, delay time.Duration) {
	if !e.timer.Reset(delay) {
		e.timer.Stop()
		s.arm(e.key, delay)
	}
}

// stop says whether there was one.
func (k *keyed) stop(key uint64) bool {
	s := k.shard(key)
	s.mutex.Lock()
	e := s.armed[key]
	if e != nil {
		delete(s.armed, key)
		e.timer.Stop()
	}
	s.mutex.Unlock()
	return e != nil
}

// touch moves the timer of key to the delay from now, and says whether there was one.
func (k *keyed) touch(key uint64, delay time.Duration) bool {
	s := k.shard(key)
	s.mutex.Lock()
	e := s.armed[key]
	if e != nil {
		s.move(e, delay)
	}
	s.mutex.Unlock()
	return e != nil
}

func (k *keyed) pending() int {
	pending := 0
	for at := range k.shards {
		s := &k.shards[at]
		s.mutex.Lock()
		pending += len(s.armed)
		s.mutex.Unlock()
	}
	return pending
}

// handles are timers as the package time gives them out. What a test asks for beyond that is counted here.
type handles struct {
	pending int64
}

// start is measured, so it counts nothing.
func (*handles) start(value uint64, delay time.Duration) *time.Timer {
	return time.AfterFunc(delay, func() { fired(value) })
}

// startCounted is for the tests.
func (h *handles) startCounted(value uint64, delay time.Duration) *time.Timer {
	atomic.AddInt64(&h.pending, 1)
	return time.AfterFunc(delay, func() {
		atomic.AddInt64(&h.pending, -1)
		fired(value)
	})
}

func (h *handles) count() int64 { return atomic.LoadInt64(&h.pending) }

func (h *handles) stopCounted(timer *time.Timer) bool {
	stopped := timer.Stop()
	if stopped {
		atomic.AddInt64(&h.pending, -1)
	}
	return stopped
}
