WORDS = ()
