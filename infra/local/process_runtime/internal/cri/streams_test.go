package cri

import (
	"bytes"
	"errors"
	"testing"
	"time"
)

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("gone") }

func TestOutputReachesAllWhoAreAttachedToTheLastByte(t *testing.T) {
	a := newAudience()
	var early, late bytes.Buffer
	first := a.join(&early)
	_, _ = a.Write([]byte("one "))
	second := a.join(&late)
	gone := a.join(broken{})
	_, _ = a.Write([]byte("two"))
	a.leave(first)
	a.leave(second)
	a.leave(gone)
	_, _ = a.Write([]byte("three"))
	if early.String() != "one two" || late.String() != "two" {
		t.Errorf("got %q and %q", early.String(), late.String())
	}
}

func TestAClientThatLeftDoesNotHoldUpTheContainer(t *testing.T) {
	a := newAudience()
	began := time.Now()
	for range 20 { // each of them would cost the patience; together far more than a busy computer takes
		a.join(broken{})
		for range 10 * waitingPieces {
			_, _ = a.Write([]byte("x"))
		}
	}
	if waited := time.Since(began); waited > 10*patience {
		t.Errorf("it waited %s", waited)
	}
}
