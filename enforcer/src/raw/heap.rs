//! The heap, and a reserve of its blocks for when the kernel grants no more address space.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ffi::c_void,
    fs, io,
    ptr::null_mut,
    sync::atomic::{AtomicBool, AtomicPtr, Ordering},
};

use rustix::{
    io::Errno,
    mm::{Advice, MlockAllFlags, madvise, mlockall},
};

/// The size of a step of the reserve.
const STEP_BYTES: usize = 1 << 20;

/// The number of steps: more than a scrape, an event stream and a pass over all pods need together.
const STEPS: usize = 16;

/// The layout of a step. Alignment 1 asks for no more than every block has.
const STEP: Layout = match Layout::from_size_align(STEP_BYTES, 1) {
    Ok(layout) => layout,
    Err(_) => panic!("one MiB is a valid size"),
};

/// The addresses of the steps; null if a step has been released.
static HELD: [AtomicPtr<u8>; STEPS] = [const { AtomicPtr::new(null_mut()) }; STEPS];

/// The system's allocator. If it gets no memory from the kernel (`RLIMIT_AS`, `vm.overcommit_memory=2`), the reserve of
/// `hold_back` is released for it, step by step: otherwise the first failed allocation would end the daemon.
#[derive(Clone, Copy, Debug)]
pub struct Heap;

// SAFETY: each call is the system allocator's own, repeated with the same arguments if it returned null, in which case
// it has changed nothing.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the same contract.
        persist(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        persist(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; if it returns null, the block is unchanged.
        persist(|| unsafe { System.realloc(block, layout, size) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Tries until it succeeds, or the reserve is empty.
#[inline]
fn persist(attempt: impl Fn() -> *mut u8) -> *mut u8 {
    let block = attempt();
    if block.is_null() { persist_by_giving_up(&attempt) } else { block }
}

#[cold]
fn persist_by_giving_up(attempt: &dyn Fn() -> *mut u8) -> *mut u8 {
    for step in &HELD {
        let held = step.swap(null_mut(), Ordering::AcqRel);
        if held.is_null() {
            continue;
        }
        // SAFETY: `hold` allocated it with this layout. The swap made this thread the only one that has its address.
        unsafe { System.dealloc(held, STEP) };
        let block = attempt();
        if !block.is_null() {
            return block;
        }
    }
    null_mut()
}

/// Fills up the reserve: blocks of the heap that are never written to, and take almost no memory. Returns whether all of
/// it is held. It only helps a program whose allocator is [`Heap`].
///
/// The blocks stay in the heap when they are released. If they were mappings, the kernel would take them back, and could
/// refuse to map as much again: with `vm.overcommit_memory=2` it does while the committed memory of all
/// processes exceeds `CommitLimit`.
pub(crate) fn hold_back() -> bool {
    if HELD.iter().all(|step| !step.load(Ordering::Acquire).is_null()) {
        return true;
    }
    in_the_heap(|| HELD.iter().all(|step| !step.load(Ordering::Acquire).is_null() || hold(step)))
}

fn hold(step: &AtomicPtr<u8>) -> bool {
    // SAFETY: the size is not zero.
    let block = unsafe { System.alloc(STEP) };
    if block.is_null() {
        return false;
    }
    // It may lie where other blocks were before, whose pages are resident.
    discard(block);
    if step.compare_exchange(null_mut(), block, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: it has just been allocated with this layout, and nothing else uses it.
        unsafe { System.dealloc(block, STEP) };
    }
    true
}

/// Returns the pages of a step to the kernel, locked or not. Before Linux 5.18 the kernel refuses, and pages that were
/// resident stay. Without huge pages, which would make a whole step resident for one page that is touched.
fn discard(block: *mut u8) {
    let page = rustix::param::page_size();
    let into = block.align_offset(page);
    let bytes = (STEP_BYTES - into) & !(page - 1);
    for advice in [Advice::LinuxNoHugepage, Advice::LinuxDontneedLocked] {
        // SAFETY: the pages lie in the block, whose content nothing uses: it has just been allocated.
        let _best_effort = unsafe { madvise(block.add(into).cast(), bytes, advice) };
    }
}

/// Blocks of at least this size are mapped separately.
#[cfg(target_env = "gnu")]
const MAPPED_FROM_BYTES: libc::c_int = 128 << 10;

/// Runs `allocate` with glibc's mmap threshold above the size of a step, so that steps come from the heap. Other threads'
/// large blocks do too meanwhile, which is harmless.
#[cfg(target_env = "gnu")]
fn in_the_heap<T>(allocate: impl FnOnce() -> T) -> T {
    const ABOVE_A_STEP_BYTES: libc::c_int = 4 << 20;
    // SAFETY: no preconditions; any thread may call it, and a failure leaves the threshold.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, ABOVE_A_STEP_BYTES) };
    let result = allocate();
    // SAFETY: as above.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES) };
    result
}

/// Other allocators have no such setting.
#[cfg(not(target_env = "gnu"))]
fn in_the_heap<T>(allocate: impl FnOnce() -> T) -> T {
    allocate()
}

/// Whether all memory of this process is locked.
static LOCKED: AtomicBool = AtomicBool::new(false);

/// Keeps all memory of this process, present and future, from being reclaimed.
///
/// `MCL_ONFAULT`: untouched pages, such as most of the program text and of the stacks, take no memory.
pub(crate) fn lock_memory() -> Result<(), Errno> {
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)?;
    LOCKED.store(true, Ordering::Release);
    Ok(())
}

/// Makes the allocator map large blocks separately, keep up to 20 MiB that are freed at the end of the heap until
/// [`trim_heap`], and use one arena for all threads.
///
/// glibc's defaults for the first two rise when the first large block is freed; then it keeps up to twice that size. What
/// it returned by itself could be a part of the reserve that is just released. It also creates several arenas, and memory
/// that is freed in one is not reused by another. One arena suffices: threads seldom allocate at once, and the eviction
/// path allocates nothing. Call this before any other thread exists, and before a large allocation.
#[cfg(target_env = "gnu")]
pub(crate) fn configure_heap() {
    const ABOVE_THE_RESERVE_BYTES: libc::c_int = 20 << 20;
    // SAFETY: no preconditions; no other thread allocates yet, and a failure leaves the defaults.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, ABOVE_THE_RESERVE_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES);
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Other allocators keep little memory, and have no such call.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn configure_heap() {}

/// What stays resident at the end of the heap. Without it, the first thread that allocates in a shortage would wait for
/// reclaim while it holds the only arena.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: usize = 512 << 10;

/// Returns freed memory at the end of the heap to the kernel; of memory that is not locked, all of it. Reading BTF briefly
/// takes tens of MiB, in small pieces that glibc would keep.
#[cfg(target_env = "gnu")]
pub(crate) fn trim_heap() {
    // SAFETY: no preconditions; any thread may call it.
    unsafe {
        libc::malloc_trim(KEPT_BYTES);
    }
}

/// Returns all freed memory to the kernel, and locks again what was locked.
///
/// `MADV_DONTNEED` fails with `EINVAL` on locked pages, so the heap is unlocked meanwhile, for some milliseconds. Do not
/// call this while memory is short.
#[cfg(target_env = "gnu")]
pub(crate) fn trim_locked_heap() -> Result<(), Errno> {
    // Best effort: a kernel may have none.
    let _forbidden = forbid_huge_pages();
    if !LOCKED.load(Ordering::Acquire) {
        trim_heap();
        return Ok(());
    }
    match unlock_heap() {
        Ok(()) => trim_heap(),
        Err(error) => tracing::warn!(%error, "cannot unlock the heap: freed memory stays with the daemon"),
    }
    let locked = lock_memory();
    // Best effort: Linux 5.14 and later.
    let _populated = populate_heap();
    locked
}

/// Keeps the kernel from backing the heap with huge pages. Where it does so unasked (`transparent_hugepage/enabled` is
/// `always`), it fills the holes that trims leave: two MiB around any page that is in use (`khugepaged/max_ptes_none`).
///
/// What the heap grows by later is a mapping of its own, without this advice, so it is repeated with each trim. A setting of
/// the whole process (`PR_SET_THP_DISABLE`) would be inherited by the programs that it starts.
#[cfg(target_env = "gnu")]
fn forbid_huge_pages() -> io::Result<()> {
    let Some((start, bytes)) = heap()? else { return Ok(()) };
    // SAFETY: it changes no content.
    Ok(unsafe { madvise(start, bytes, Advice::LinuxNoHugepage) }?)
}

#[cfg(target_env = "gnu")]
fn unlock_heap() -> io::Result<()> {
    let Some((start, bytes)) = heap()? else { return Ok(()) };
    // SAFETY: unlocking changes no content.
    Ok(unsafe { rustix::mm::munlock(start, bytes) }?)
}

/// Reads back what was swapped out while the heap was unlocked: `MCL_ONFAULT` does not.
#[cfg(target_env = "gnu")]
fn populate_heap() -> io::Result<()> {
    let Some((start, bytes)) = heap()? else { return Ok(()) };
    // SAFETY: it changes no content; a page that holds nothing becomes the zero page, which takes no memory.
    Ok(unsafe { madvise(start, bytes, Advice::LinuxPopulateRead) }?)
}

/// Other allocators keep little memory, and have no such call.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn trim_heap() {}

/// Other allocators keep little memory, and have no such call.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn trim_locked_heap() -> Result<(), Errno> {
    Ok(())
}

/// The start and the size of the heap (`proc_pid_maps(5)`); `None` if there is none.
#[cfg(target_env = "gnu")]
fn heap() -> io::Result<Option<(*mut c_void, usize)>> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    // Locked and unlocked parts are separate lines.
    let parts = maps.lines().filter(|line| line.ends_with("[heap]")).filter_map(|line| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
    });
    let whole = parts.reduce(|(start, _), (_, end)| (start, end));
    Ok(whole.map(|(start, end)| (std::ptr::without_provenance_mut(start), end.saturating_sub(start))))
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, env, process::Command};

    use rustix::process::{Resource, Rlimit, setrlimit};

    use super::*;

    const CHILD: &str = "ENFORCER_TEST_HEAP";

    fn held() -> usize {
        HELD.iter().filter(|step| !step.load(Ordering::Acquire).is_null()).count()
    }

    /// One after the other: what is held is the whole process's.
    #[test]
    fn what_is_held_back_is_given_up_step_by_step_and_held_again() {
        assert!(hold_back() && held() == STEPS);
        // An allocator that works at the third attempt.
        let attempts = Cell::new(0);
        let mut block = 1_u8;
        let place = &raw mut block;
        let third = || {
            attempts.set(attempts.get() + 1);
            if attempts.get() < 3 { null_mut() } else { place }
        };
        assert_eq!(persist(third), place);
        assert_eq!(held(), STEPS - 2);
        assert!(hold_back() && held() == STEPS);
        // One that never works has it all, and null is answered.
        assert!(persist(null_mut).is_null());
        assert_eq!(held(), 0);
        assert!(hold_back() && held() == STEPS);

        in_a_process_of_its_own("blocks_come_from_the_reserve_when_the_kernel_maps_nothing");
    }

    #[test]
    fn trims_forbid_huge_pages() {
        in_a_process_of_its_own("the_heap_has_no_huge_pages_after_a_trim");
    }

    fn in_a_process_of_its_own(test: &str) {
        let child = Command::new(env::current_exe().unwrap())
            .args([&format!("raw::heap::tests::{test}"), "--exact", "--ignored", "--nocapture"])
            .env(CHILD, "1")
            .env("MALLOC_ARENA_MAX", "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{child:?}");
        assert!(String::from_utf8_lossy(&child.stdout).contains("1 passed"), "{child:?}");
    }

    /// Whether no part of the heap may have huge pages (`nh` in `proc_pid_smaps(5)`).
    fn has_huge_pages_forbidden() -> bool {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut parts = smaps.split("VmFlags:");
        // The flags of a mapping come last, before the next one's first line.
        let mut is_heap = parts.next().unwrap().contains("[heap]");
        parts.all(|part| {
            let (flags, next) = part.split_once('\n').unwrap();
            let was_heap = std::mem::replace(&mut is_heap, next.contains("[heap]"));
            !was_heap || flags.split(' ').any(|flag| flag == "nh")
        })
    }

    /// Needs a process of its own: other tests make the heap grow.
    #[test]
    #[ignore = "runs in a process of its own, started by the test above"]
    fn the_heap_has_no_huge_pages_after_a_trim() {
        configure_heap();
        if !fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap() {
            return;
        }
        assert!(!has_huge_pages_forbidden());
        // What was read above has left enough room to read it again.
        trim_locked_heap().unwrap();
        assert!(has_huge_pages_forbidden());
    }

    /// Needs a process of its own: a lowered hard limit cannot be raised again.
    #[test]
    #[ignore = "runs in a process of its own, started by the test above"]
    fn blocks_come_from_the_reserve_when_the_kernel_maps_nothing() {
        assert!(env::var_os(CHILD).is_some(), "not in a process of its own");
        configure_heap();
        // Resident once, and then a part of the reserve.
        let before: Vec<Vec<u8>> = (0..128).map(|_| vec![1; 64 << 10]).collect();
        drop(before);
        assert!(hold_back() && held() == STEPS);
        let status = fs::read_to_string("/proc/self/smaps").unwrap();
        let heap = status.split("[heap]").nth(1).unwrap();
        let rss =
            heap.lines().find_map(|line| line.strip_prefix("Rss:")?.trim().strip_suffix(" kB")).unwrap();
        assert!(rss.trim().parse::<usize>().unwrap() < 3 << 10, "{rss} KiB of the heap are resident");

        let nothing = Rlimit { current: Some(0), maximum: Some(0) };
        setrlimit(Resource::Data, nothing).unwrap();
        // SAFETY: the sizes are not zero; each block is written to within its size, and never freed.
        let allocate = |bytes: usize| unsafe {
            let block = Heap.alloc(Layout::from_size_align(bytes, 8).unwrap());
            assert!(!block.is_null(), "{bytes} with {} steps held", held());
            block.write_bytes(1, bytes);
        };
        // Each is above glibc's mmap threshold: it would be mapped separately if the kernel granted a mapping.
        let mut taken = 0;
        while held() > 0 {
            allocate(160 << 10);
            taken += 160 << 10;
        }
        assert!(taken > (STEPS - 4) * STEP_BYTES, "{taken} bytes of the reserve were of use");
    }
}
