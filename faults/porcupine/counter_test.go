package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// A history of a counter in lines: who, called, answered, op, wanted, status, tried, told.
func counted(t *testing.T, kind, number, lines string) verdict {
	t.Helper()
	in := "c n " + kind + " " + number + "\n"
	for _, line := range strings.Split(lines, ";") {
		in += "u " + strings.TrimSpace(line) + "\n"
	}
	var out strings.Builder
	if err := serve([]string{"100", "97", "60"}, strings.NewReader(in+".\n"), &out); err != nil {
		t.Fatal(err)
	}
	var v verdict
	if err := json.Unmarshal([]byte(out.String()), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestHistoriesOfCountersThatAreRight(t *testing.T) {
	for name, one := range map[string][2]string{
		"permits taken and given back":        {"plain-semaphore", "a 1 2 acquire 3 ok 0 -; b 3 4 acquire 2 timeout 1 -; a 5 6 release 3 ok 0 -; b 7 8 acquire 4 ok 0 -; server 20 21 look 0 ok 0 0"},
		"a waiter that a release serves":      {"plain-semaphore", "a 1 2 acquire 4 ok 0 -; b 3 9 acquire 4 ok 0 -; a 5 10 release 4 ok 0 -"},
		"a release that is done later":        {"plain-semaphore", "a 1 2 release 1 unavailable 0 -; b 3 4 look 0 ok 0 4; server 20 21 look 0 ok 0 5"},
		"an addition that was done":           {"plain-semaphore", "a 1 2 add 3 unavailable 0 -; b 3 4 look 0 ok 0 7; server 20 21 look 0 ok 0 7"},
		"an addition that was not done":       {"plain-semaphore", "a 1 2 add 3 unavailable 0 -; server 20 21 look 0 ok 0 4"},
		"some are taken away":                 {"plain-semaphore", "a 1 2 add -6 ok 0 -; b 3 4 look 0 ok 0 -2; b 5 6 acquire 1 timeout 1 -; server 20 21 look 0 ok 0 -2"},
		"all are taken":                       {"plain-semaphore", "a 1 2 drain 1 ok 0 4; b 1 2 release 1 ok 0 -; server 20 21 look 0 ok 0 1"},
		"all are taken, and nobody hears it":  {"plain-semaphore", "a 1 2 drain 1 unavailable 0 -; b 3 4 look 0 ok 0 0; server 20 21 look 0 ok 0 0"},
		"a try behind one that wants more":    {"plain-semaphore", "a 1 9 acquire 6 ok 0 -; a 3 4 acquire 1 timeout 1 -; b 6 7 add 2 ok 0 -"},
		"permits that were won unnoticed":     {"plain-semaphore", "a 1 2 acquire 2 unavailable 1 -; b 3 4 acquire 4 timeout 1 -; b 5 6 look 0 ok 0 2; b 7 8 drain 1 ok 0 2; server 20 21 look 0 ok 0 2"},
		"a release that serves its client":    {"plain-semaphore", "a 1 2 acquire 3 ok 0 -; a 3 9 acquire 2 ok 0 -; a 8 20 release 3 ok 0 -; b 11 12 look 0 ok 0 1; server 30 31 look 0 ok 0 2"},
		"a number that is there":              {"plain-semaphore", "a 1 2 set 9 ok 0 0; server 20 21 look 0 ok 0 4"},
		"a latch that opens":                  {"latch", "a 1 9 wait 1 ok 0 -; b 2 3 wait 1 timeout 1 -; b 4 5 down 3 ok 0 -; c 4 6 down 2 ok 0 -; b 10 11 wait 1 ok 1 -; server 20 21 look 0 ok 0 0"},
		"a count that is done later":          {"latch", "a 1 2 down 2 unavailable 0 -; b 3 4 look 0 ok 0 4; server 20 21 look 0 ok 0 2"},
		"an open latch gets another count":    {"latch", "a 1 2 down 4 ok 0 -; a 3 4 set 2 ok 0 1; b 5 6 set 2 ok 0 0; server 20 21 look 0 ok 0 2"},
		"a count whose caller does not know":  {"latch", "a 1 2 down 4 ok 0 -; a 3 4 set 2 unavailable 0 -; server 20 21 look 0 ok 0 2"},
		"a count that was not set, unknowing": {"latch", "a 1 2 down 4 ok 0 -; a 3 4 set 2 unavailable 0 -; server 20 21 look 0 ok 0 0"},
	} {
		if v := counted(t, one[0], "4", one[1]); v.Violations != 0 || v.Undecided != 0 {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func TestHistoriesOfCountersThatAreWrong(t *testing.T) {
	for name, one := range map[string][2]string{
		"one permit too many is taken":         {"plain-semaphore", "a 1 2 acquire 3 ok 0 -; b 3 4 acquire 2 ok 0 -"},
		"a release that counts twice":          {"plain-semaphore", "a 1 2 acquire 3 ok 0 -; a 3 4 release 3 ok 0 -; server 20 21 look 0 ok 0 7"},
		"a release that is lost":               {"plain-semaphore", "a 1 2 release 1 unavailable 0 -; server 20 21 look 0 ok 0 4"},
		"an acquisition that counts twice":     {"plain-semaphore", "a 1 2 acquire 1 ok 0 -; server 20 21 look 0 ok 0 2"},
		"an addition that counts twice":        {"plain-semaphore", "a 1 2 add 3 unavailable 0 -; server 20 21 look 0 ok 0 10"},
		"permits that nobody took are missing": {"plain-semaphore", "a 1 2 acquire 2 unavailable 1 -; server 20 21 look 0 ok 0 3; a 3 4 drain 1 ok 0 2"},
		"a refusal while all are free":         {"plain-semaphore", "a 1 2 acquire 2 timeout 1 -"},
		"a refusal behind one who has them":    {"plain-semaphore", "a 1 2 acquire 2 ok 0 -; a 3 4 acquire 2 timeout 1 -"},
		"a release in two steps":               {"plain-semaphore", "a 1 2 acquire 3 ok 0 -; a 8 20 release 3 ok 0 -; b 11 12 look 0 ok 0 2; server 30 31 look 0 ok 0 4"},
		"a look that is old":                   {"plain-semaphore", "a 1 2 acquire 2 ok 0 -; b 3 4 look 0 ok 0 4"},
		"more are taken than there are":        {"plain-semaphore", "a 1 2 drain 1 ok 0 5"},
		"less is taken than there is":          {"plain-semaphore", "a 1 2 drain 1 ok 0 3"},
		"all are taken twice":                  {"plain-semaphore", "a 1 2 drain 1 ok 0 4; b 3 4 drain 1 ok 0 4"},
		"a number that is set twice":           {"plain-semaphore", "a 1 2 set 9 ok 0 1"},
		"somebody is let in too early":         {"latch", "b 2 3 down 3 ok 0 -; a 1 4 wait 1 ok 0 -; b 5 6 down 1 ok 0 -"},
		"somebody is kept out":                 {"latch", "b 2 3 down 4 ok 0 -; a 4 5 wait 1 timeout 1 -"},
		"a count that counts twice":            {"latch", "b 2 3 down 1 ok 0 -; server 20 21 look 0 ok 0 2"},
		"a count that is lost":                 {"latch", "b 2 3 down 1 unavailable 0 -; server 20 21 look 0 ok 0 4"},
		"a shut latch gets another count":      {"latch", "b 2 3 set 9 ok 0 1"},
	} {
		v := counted(t, one[0], "4", one[1])
		if v.Violations != 1 || !strings.Contains(v.Messages[0], " cannot follow at ") {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// An answer that permits won unnoticed may explain is left out only if nothing else explains it.
func TestExcusesOfCountersAreCounted(t *testing.T) {
	won := "a 1 2 acquire 2 unavailable 1 -; b 3 4 acquire %; server 20 21 look 0 ok 0 4"
	for rest, excused := range map[string]int{"5 timeout 1 -": 0, "4 timeout 1 -": 1} {
		if v := counted(t, "plain-semaphore", "4", strings.Replace(won, "%", rest, 1)); v.Excused != excused || v.Violations != 0 {
			t.Errorf("%s: %+v", rest, v)
		}
	}
}
