//! The workloads, for measuring.

fn main() -> Result<(), redlatch_bench::Failure> {
    redlatch_bench::run(std::env::args().skip(1))
}
