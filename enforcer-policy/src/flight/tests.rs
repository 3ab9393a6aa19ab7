mod damage;
mod random;
mod scenes;

/// Recordings of version 0.2 can be replayed: names are part of the shape, and a renamed type or field keeps its old one
/// there. Change the value only together with the content of a record.
#[test]
fn the_shape_is_that_of_older_recordings() {
    assert_eq!(super::file::shape(), 0x4b46_f881);
}
