package main

import (
	"syscall"
	"unsafe"
)

// monotonic is the clock of Rust's Instant, which the package time does not show.
func monotonic() int64 {
	const clockMonotonic = 1
	var now syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)), 0)
	check(errno == 0, "%v", errno)
	return now.Nano()
}
