"""Do the sources, the documents and the tests keep the rules of the house?"""
