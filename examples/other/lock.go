package main

/*
#cgo LDFLAGS: -lredlatch
#include <redlatch.h>
*/
import "C"

import (
	"fmt"
	"runtime"
)

// check makes one call, and reads its error on the same thread.
func check(call func() C.redlatch_status) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if call() != C.REDLATCH_OK {
		panic(C.GoString(C.redlatch_last_error()))
	}
}

func main() {
	var client *C.redlatch_client
	var lock *C.redlatch_lock
	name := C.CString("orders:42")
	check(func() C.redlatch_status { return C.redlatch_client_open(nil, nil, &client) }) // REDLATCH_URL
	check(func() C.redlatch_status { return C.redlatch_lock_new(client, name, nil, &lock) })
	owner := C.redlatch_owner_new()
	check(func() C.redlatch_status { return C.redlatch_lock_acquire(lock, owner, 5000, 0, nil) })
	fmt.Println("it is ours")
	check(func() C.redlatch_status { return C.redlatch_lock_check(lock, owner) }) // before every write that matters
	check(func() C.redlatch_status { return C.redlatch_lock_release(lock, owner) })
	C.redlatch_lock_free(lock)
	check(func() C.redlatch_status { return C.redlatch_client_close(client, C.REDLATCH_CLOSE_LIMIT) })
	C.redlatch_client_free(client)
}
