"""Linear algebra on numbers and arrays, Newton's method and its derivative, tableaus, tolerances."""
