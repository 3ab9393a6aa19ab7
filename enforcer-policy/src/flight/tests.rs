mod damage;
mod random;
mod scenes;

/// With another shape no recording of before can be replayed. Change the value only together with the content of a record.
#[test]
fn the_shape_changes_only_on_purpose() {
    assert_eq!(super::file::shape(), 0x0d11_525c);
}

/// Recordings of before stay readable as long as this stays: other content of a reading of processes needs another kind of
/// frame.
#[test]
fn the_shape_of_processes_never_changes() {
    assert_eq!(super::processes_shape(), 0x960c_fa16);
}
