//! The usage of the process.

/// The usage of the process now; memory in kilobytes.
pub(crate) struct Usage {
    pub(crate) memory: u64,
    pub(crate) threads: u64,
    pub(crate) files: u64,
}

impl Usage {
    pub(crate) fn now() -> Usage {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
                .unwrap_or(0)
        };
        let files = std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64);
        Usage {
            memory: field("VmRSS:"),
            threads: field("Threads:"),
            files,
        }
    }
}
