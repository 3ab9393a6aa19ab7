mod damage;
mod random;
mod scenes;
