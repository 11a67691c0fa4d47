//! The primitives: locks, semaphores and latches. Each has a folder, with its facts, its calls and its
//! scripts.

pub mod counters {
    pub mod change;
    pub mod ops;
}
pub mod facts;
pub mod fair {
    pub mod facts;
    pub mod ops;
}
pub mod ops;
pub mod payload;
pub mod read_write {
    pub mod facts;
    pub mod ops;
}
pub mod reentrant {
    pub mod facts;
    pub mod ops;
}
pub mod semaphore {
    pub mod facts;
    pub mod ops;
}
pub mod several {
    pub mod facts;
}
pub mod simple {
    pub mod facts;
    pub mod ops;
}
